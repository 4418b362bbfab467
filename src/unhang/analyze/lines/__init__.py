"""What the lines of logs say of the ranks: which error came first, how far each came, who stands apart."""
