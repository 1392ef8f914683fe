"""`explain`, `placement`, `diff`, `logs`, `bundle` and `watch`: what a cluster says about models."""
