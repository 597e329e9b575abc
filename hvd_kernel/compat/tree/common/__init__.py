"""``horovod.common``: what all of Horovod's frontends share."""
