#!/bin/sh
# While the image is built: puts the wheel's Python backend beside ours, with the stub of this Python, and fails here
# and not at the first start where a library is missing.
set -eu
root=/opt/tritonserver
python=$("$root/env/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
packages="$root/env/lib/python$python/site-packages"
wheel="$packages/pytriton/tritonserver"

cp -r "$wheel/backends/python" "$root/backends/python"
cp "$wheel/python_backend_stubs/$python/triton_python_backend_stub" "$root/backends/python/"
chmod 755 "$root/backends/python/triton_python_backend_stub" "$root/bin/tritonserver" "$wheel/bin/tritonserver"
ln -s "$packages/nvidia_pytriton.libs" "$root/lib"
ln -s "$wheel/bin/tritonserver" "$root/bin/tritonserver.real"

for program in "$root/bin/tritonserver.real" "$root/backends/python/triton_python_backend_stub"; do
    if LD_LIBRARY_PATH="$root/lib" ldd "$program" | grep 'not found'; then
        echo "This base image lacks what is named above. It needs glibc >= 2.35 and a shared libpython$python." >&2
        exit 1
    fi
done
"$root/env/bin/python" -c 'import numpy, onnxruntime; assert numpy.__version__ < "2"'
