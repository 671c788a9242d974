"""What compressors write, how long they take, and where they pay."""
