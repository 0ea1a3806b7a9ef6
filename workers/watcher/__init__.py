"""The watcher: keeps the jobs' workflows up to date with what the cluster shows. One for each cluster."""
