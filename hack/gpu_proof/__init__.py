"""One command proves the product on a real GPU: packs what the machine lacks, runs the product there, writes figures."""
