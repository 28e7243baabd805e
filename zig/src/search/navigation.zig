//! Navigation with links in memory when every vertex may be a candidate: a pipeline, so that memory and arithmetic
//! overlap. The links of chosen vertices are on their way while others are decoded; the codes of neighbors are on their
//! way while those before them are estimated. So a vertex is chosen a few steps before all that precedes it is known,
//! which costs little: whatever stands in the list is followed in the end.
//!
//!   list ──▶ chosen ──▶ decoded: met for the first time? ──▶ fresh ──▶ estimated ──▶ list
//!            (links asked for)                     (codes asked for)
const std = @import("std");
const layout = @import("layout");
const state = @import("search_state.zig");
const Search = state.Search;
const assert = std.debug.assert;

/// Neighbors met ahead of estimation; as many codes are on their way.
const ahead = 32;
const estimated_together = 8;
/// Vertices whose links are on their way.
const chosen_ahead = 2;

comptime {
    // What was met ahead, and one list more.
    assert(Search.fresh_max >= Search.fresh_max / 4 + ahead + layout.adjacency.neighbors_max);
}

/// Until every candidate in the list was followed.
pub fn run(search: *Search) state.PageError!void {
    const links = &search.shared.reader.links.?;
    const codes = &search.shared.reader.codes;
    var chosen: Chosen = .{};
    var head: u32 = 0; // fresh[head..tail] were met and are not estimated yet
    var tail: u32 = 0;
    var asked: u32 = 0; // the codes of fresh[head..asked] are on their way
    while (true) {
        while (tail - head < ahead) {
            const vertex = chosen.next(search) orelse break;
            const ids = links.decode(vertex, &search.neighbors) catch return error.BadList;
            search.cost.expanded += 1;
            tail += search.visited.insert_new(ids, search.fresh[tail..]);
        }
        if (head == tail) return;
        const ask_until = @min(tail, head + ahead);
        while (asked < ask_until) : (asked += 1) codes.prefetch(search.fresh[asked]);
        const count = @min(estimated_together, tail - head);
        search.query.estimate(codes, search.fresh[head..][0..count], search.distances[0..count]);
        search.cost.estimates += count;
        for (search.fresh[head..][0..count], search.distances[0..count]) |id, distance| {
            if (search.list.insert(id, distance)) links.prefetch(id);
        }
        head += count;
        if (head >= Search.fresh_max / 4) {
            std.mem.copyForwards(u32, search.fresh[0 .. tail - head], search.fresh[head..tail]);
            asked -= head;
            tail -= head;
            head = 0;
        }
    }
}

const Chosen = struct {
    vertices: [chosen_ahead]u32 = undefined,
    count: u32 = 0,

    /// The vertex that was chosen first; others are chosen so that as many as before wait.
    inline fn next(self: *Chosen, search: *Search) ?u32 {
        const links = &search.shared.reader.links.?;
        while (self.count < chosen_ahead) : (self.count += 1) {
            const place = search.list.nearest_unexpanded() orelse break;
            search.list.mark_expanded(place);
            self.vertices[self.count] = search.list.items[place].vertex();
            links.prefetch_list(self.vertices[self.count]);
        }
        if (self.count == 0) return null;
        const first = self.vertices[0];
        self.count -= 1;
        for (0..self.count) |i| self.vertices[i] = self.vertices[i + 1];
        return first;
    }
};
