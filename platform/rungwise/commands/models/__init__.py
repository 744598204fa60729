"""Commands on what was built: inspect, predict, export, trace, verify, clean up."""
