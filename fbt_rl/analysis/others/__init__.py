"""Files of answers that other systems wrote."""
