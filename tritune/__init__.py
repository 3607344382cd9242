"""Tritune: from an ONNX model to a tuned, measured, compared configuration on Triton.

The core runs without Streamlit. Stages import only to their left:

    plan -> model -> repository -> server -> load -> measurement -> store -> analysis -> charts -> pages
"""

__version__ = "0.1.0"
