"""The Kubernetes operator: gives the lifecycle of `samite.lifecycle` eyes and hands on a cluster."""
