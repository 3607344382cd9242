"use strict";
// Draws the charts that can be seen, in the browser's light or dark look, and saves what the page holds.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const data = document.getElementById("data").textContent;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();

  function look(narrow) {
    const ink = dark.matches ? "#e6ece9" : "#17211e";
    const dim = dark.matches ? "#b4c0bb" : "#4c5a56";
    const line = dark.matches ? "#2e3a36" : "#e3e8e6";
    const font = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
    const text = {labelColor: dim, titleColor: dim, labelFont: font, titleFont: font, labelFontSize: narrow ? 11 : 12, titleFontSize: 12};
    return {
      background: "transparent",
      font,
      view: {stroke: null},
      title: {color: ink, font, fontSize: 15, fontWeight: 600},
      axis: {...text, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: 400, titlePadding: 10},
      legend: {...text, labelLimit: 0},
      header: text,
      text: {color: ink, font},
    };
  }

  // On a phone a legend has one column and a long axis title two lines, or they would take the marks' room.
  function narrowed(part) {
    if (Array.isArray(part)) return part.map(narrowed);
    if (part === null || typeof part !== "object") return part;
    const found = {};
    for (const [name, value] of Object.entries(part)) {
      if (name === "datasets" || name === "data") found[name] = value;
      else if (name === "legend" && value?.columns > 1) found[name] = {...value, columns: 1};
      else if (name === "title" && typeof value === "string" && value.length > 34) found[name] = lines(value);
      else found[name] = narrowed(value);
    }
    return found;
  }
  function lines(text) {
    const middle = text.length / 2;
    const cuts = [...text.matchAll(/ /g)].map((match) => match.index);
    const cut = cuts.reduce((best, each) => (Math.abs(each - middle) < Math.abs(best - middle) ? each : best), cuts[0]);
    return cut === undefined ? text : [text.slice(0, cut), text.slice(cut + 1)];
  }

  async function draw(place) {
    drawn.get(place)?.finalize();
    drawn.delete(place);
    const narrow = place.clientWidth < 440;
    const result = await vegaEmbed(place, narrow ? narrowed(specs[place.id]) : specs[place.id], {
      renderer: "svg",
      config: look(narrow),
      tooltip: {theme: dark.matches ? "dark" : "light"},
      actions: {export: {svg: true, png: true}, source: false, compiled: false, editor: false},
      downloadFileName: place.id,
    });
    drawn.set(place, result);
  }

  // A chart takes its container's width, so it is drawn when it first has one.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, {rootMargin: "600px"});
  const places = Object.keys(specs).map((name) => document.getElementById(name));
  places.forEach((place) => seen.observe(place));
  dark.addEventListener("change", () => [...drawn.keys()].forEach(draw));
  window.addEventListener("beforeprint", () => places.forEach((place) => drawn.has(place) || draw(place)));

  document.getElementById("loads")?.addEventListener("change", (event) => {
    for (const part of document.querySelectorAll(".load")) part.hidden = part.dataset.load !== event.target.value;
  });

  function save(text, name, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  const whole = JSON.parse(data);
  document.getElementById("save").addEventListener("click", () => {
    save(JSON.stringify(whole, null, 1), `tritune-${whole.study.study_id}.json`, "application/json");
  });
  for (const button of document.querySelectorAll("button.config")) {
    button.addEventListener("click", () => save(whole.config_pbtxt[button.dataset.number], "config.pbtxt", "text/plain"));
  }
})();
