"""How ranks share a model: process group, mesh, sharding and gradient norms across meshes."""
