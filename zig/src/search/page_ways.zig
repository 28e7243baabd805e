//! Navigation over shared links (index/page_ways.zig): who follows a vertex looks at the codes of its whole page, and at
//! what the list of its stretch leads to. Both happen once, so many vertices of a list are followed without a look.
//! The policy is navigation.zig's: who is chosen, who of those met is estimated, and where they go.
const std = @import("std");
const layout = @import("layout");
const lists = @import("list.zig");
const state = @import("search_state.zig");
const Search = state.Search;

const estimated_together = lists.List.insert_max;
/// Vertices of a page that are looked at together; beside them `fresh` has room for what a policy adds.
const page_run = 128;
/// What a vertex that is followed brings is like that of so many links of its own.
pub const links_like = 64;

/// Until the policy chooses nothing any more.
pub fn run(search: *Search, policy: anytype) state.PageError!void {
    const Policy = @typeInfo(@TypeOf(policy)).pointer.child;
    comptime std.debug.assert(Search.fresh_max >= layout.adjacency.neighbors_max + Policy.added_max + estimated_together);
    const reader = search.shared.reader;
    const ways = &reader.page_ways.?;
    while (policy.choose(search)) |vertex| {
        search.cost.expanded += 1;
        const stretch = ways.stretch_of(vertex);
        // A key of a page has its lowest bit clear, one of a stretch has it set.
        const ids = if (search.followed.insert(2 * stretch + 1)) try ways.decode(stretch, &search.neighbors) else search.neighbors[0..0];
        if (!take(search, policy, vertex, ids)) return;
        const page = reader.directory.page_of(vertex);
        if (!search.followed.insert(2 * page)) continue;
        var next = reader.directory.starts[page];
        const end = reader.directory.starts[page + 1];
        var own: [page_run]u32 = undefined;
        while (next < end) {
            const count = @min(page_run, end - next);
            for (own[0..count], next..) |*id, one| id.* = @intCast(one);
            next += count;
            if (!take(search, policy, vertex, own[0..count])) return;
        }
    }
}

/// Offers those of `ids` that were not met before; false where the policy ends navigation.
fn take(search: *Search, policy: anytype, vertex: u32, ids: []const u32) bool {
    const reader = search.shared.reader;
    const codes = &reader.codes;
    const met = search.visited.insert_new(ids, &search.fresh);
    const count = policy.keep(search, vertex, 0, met) orelse return false;
    codes.prefetch(search.fresh[0..count]);
    var at: u32 = 0;
    while (at < count) {
        const some = @min(estimated_together, count - at);
        search.query.estimate_asked(codes, search.fresh[at..][0..some], some, search.distances[0..some]);
        _ = policy.offer(search, at, some);
        at += some;
    }
    search.cost.estimates += count;
    return true;
}
