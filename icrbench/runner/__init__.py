"""From a request to stored records: plan, worker, recorder."""
