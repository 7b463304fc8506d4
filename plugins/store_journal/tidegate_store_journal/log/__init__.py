"""What is on disk: the format, the storages, data files and how they are walked."""
