"""What several ops share: headers of PTX and storage types, and tensor maps."""
