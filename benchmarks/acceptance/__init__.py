"""Does what is said of GPUs hold on this one? Nothing is imported here."""
