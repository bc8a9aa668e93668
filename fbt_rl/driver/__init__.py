"""How a run is carried out: planned, checked, placed on Ray and followed. Nothing below imports it."""
