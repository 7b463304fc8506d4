"""The files on disk: format, storages, data files, and how to walk them."""
