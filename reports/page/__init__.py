"""The page: a study at a glance as one file that needs no network. Nothing is imported here."""
