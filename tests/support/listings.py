"""Complete listings, as the operator's informer shows them."""

from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import name_of
from enginewright.controller.routing import Router
from enginewright.kube.api import Listing
from enginewright.kube.resources import Resource


def show(cache: ObjectCache, resource: Resource, listing: Listing) -> list[str]:
    """Have the cache show what exists; returns the names of what is new, changed or gone."""
    names = set(map(name_of, listing.items))
    changed = [obj for obj in listing.items if cache.observe(resource, obj)]
    ghosts = cache.end_listing(resource, names, listing.resource_version)
    changed += [ghost for ghost in ghosts if cache.observe(resource, ghost, deleted=True)]
    return sorted(obj["metadata"]["name"] for obj in changed)


def route(router: Router, resource: Resource, listing: Listing) -> None:
    """Have the router handle all that exists, and queue what that affects."""
    names = router.page(resource, listing.items)
    router.end_listing(resource, names, listing.resource_version)
