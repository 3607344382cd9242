"""Other programs' results, and Tritune's own files, as rows that can become trials: one module a kind of file.

Belongs here: reading a format. Never: which format a file has, the store (tritune.imports).
"""
