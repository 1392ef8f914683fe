"""What a release consists of. Everything follows from the commit and the built images: two runs give equal bytes."""
