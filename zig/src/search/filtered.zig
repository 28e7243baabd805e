//! What a filter changes in a search whose links are in memory: which vertices may be candidates, and what is followed
//! only because it leads on. The plan behind it is chosen in filter_plan.zig.
const std = @import("std");
const base = @import("base");
const filter_plan = @import("filter_plan.zig");
const state = @import("search_state.zig");
const Search = state.Search;

/// The first step of a search with a filter.
pub fn begin(search: *Search) void {
    if (matches_to_scan(search)) |matches| return scan(search, matches);
    // With links on disk a vertex must be read before it can be navigated through, so there the filter is asked for
    // results alone.
    search.gated = !search.parameters.late_filter and search.shared.plan == .links_in_memory;
    search.enter();
}

/// The passing vertices, when looking at all of them is the cheaper plan.
fn matches_to_scan(search: *const Search) ?base.BitSet {
    const filter = search.filter.?;
    if (search.parameters.late_filter or !filter.is_resolved()) return null;
    const n: f64 = @floatFromInt(search.shared.reader.n());
    if (!filter_plan.scan_is_cheaper(filter.estimate() * n, n, search.parameters.list_size)) return null;
    return @constCast(filter).resolve() catch unreachable; // resolved already: nothing to allocate
}

/// Estimates every passing vertex; what is left in the list needs no navigation.
fn scan(search: *Search, matches: base.BitSet) void {
    var iterator = matches.iterator();
    var count: usize = 0;
    while (true) {
        const next = iterator.next();
        if (next) |vertex| {
            search.fresh[count] = @intCast(vertex);
            count += 1;
        }
        if (count == Search.fresh_max or (next == null and count > 0)) {
            search.query.estimate(&search.shared.reader.codes, search.fresh[0..count], search.distances[0..count]);
            search.counters.estimates += @intCast(count);
            for (search.fresh[0..count], search.distances[0..count]) |vertex, distance| {
                _ = search.list.insert(vertex, distance);
            }
            count = 0;
        }
        if (next == null) break;
    }
    search.scanned = true;
}

/// Into the list if it may be an answer; else it only leads on, as long as it is nearer than the list reaches.
pub inline fn offer(search: *Search, vertex: u32, distance: f32) void {
    if (!(distance < search.list.bound())) return;
    if (!search.filter.?.passes(vertex)) {
        search.frontier.push(vertex, distance);
        return;
    }
    _ = search.list.insert(vertex, distance);
}

/// Best first over passing and failing vertices alike, until nothing that the list reaches is left to follow.
pub fn navigate(search: *Search) state.PageError!void {
    const links = &search.shared.reader.links.?;
    while (true) {
        const place = search.list.nearest_unexpanded();
        const near = if (place) |p| search.list.items[p].distance else std.math.inf(f32);
        const vertex = blk: {
            if (search.frontier.nearest() < near) {
                // Nothing beyond the list can lead to what is within it.
                if (search.frontier.nearest() >= search.list.bound()) {
                    if (place == null) return;
                } else {
                    search.counters.filtered += 1;
                    break :blk search.frontier.pop();
                }
            }
            const p = place orelse return;
            search.list.mark_expanded(p);
            break :blk search.list.items[p].vertex();
        };
        search.counters.expanded += 1;
        const ids = links.decode(vertex, &search.neighbors) catch return error.BadList;
        search.follow(ids);
        if (search.list.nearest_unexpanded()) |next| links.prefetch(search.list.items[next].vertex());
    }
}
