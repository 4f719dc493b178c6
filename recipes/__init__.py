"""Scripts that write the data of papers as ordinary tables and folders; the settings are in the files beside them."""
