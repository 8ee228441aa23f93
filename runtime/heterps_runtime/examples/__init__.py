"""Models that come with heterps, as factories for `package.module:factory`."""
