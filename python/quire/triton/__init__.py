"""``quire triton``: a Triton Inference Server with Quire's backend.

Standard library only; the server computes in its own process, without Python.
"""
