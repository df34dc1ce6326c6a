"""The object store behind fsspec: time limits for every call, and large payloads by reference."""
