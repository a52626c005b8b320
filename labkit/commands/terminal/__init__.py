"""What commands read from and print to the terminal."""
