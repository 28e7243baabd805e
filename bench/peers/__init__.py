"""The systems that are measured, velo among them, each behind one protocol in a process of its own."""
