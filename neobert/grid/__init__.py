"""Who works on what: claims, grid points, studies."""
