//! How a search with a filter goes about it, chosen before its first step.
//!
//!   scan          so few vertices pass that looking at the codes of all of them is less work than finding them
//!                 through the graph
//!   gated graph   best first through everything, but only what passes is a candidate, and only candidates are read
//!   late check    for comparison: the filter is asked for results alone
const std = @import("std");
const filter_room = @import("filter");
const Job = @import("job.zig").Job;

/// Expected estimates of a gated search: the list spans list_size / s vertices, each of which brings about this many
/// that were not met before.
const estimates_per_expansion = 8;

/// True when scanning `matches` codes costs less than finding the best through the graph.
pub fn scan_is_cheaper(matches: f64, n: f64, list_size: u32) bool {
    const selectivity = @max(matches, 0.5) / n;
    return matches < @as(f64, @floatFromInt(list_size)) / selectivity * estimates_per_expansion;
}

/// Evaluates the filters of which few vertices pass over all rows, once: a scan needs to know which.
pub fn prepare_filters(job: *const Job, n: u32) error{OutOfMemory}!void {
    for (job.filters) |handle| {
        const filter = handle orelse continue;
        if (filter.is_resolved()) continue;
        const rows: f64 = @floatFromInt(n);
        if (scan_is_cheaper(filter.estimate() * rows, rows, job.parameters.list_size))
            _ = try @constCast(filter).resolve();
    }
}
