//! Navigation with links in memory: a pipeline, so that memory and arithmetic overlap. The links of chosen vertices are on
//! their way while others are decoded; the codes of neighbors are on their way while those before them are estimated. So a
//! vertex is chosen a few steps before all that precedes it is known, which costs little: whatever stands in the list is
//! followed in the end.
//!
//!   list ──▶ chosen ──▶ decoded: met for the first time? ──▶ fresh ──▶ estimated ──▶ list
//!            (links asked for)                     (codes asked for)
//!
//! Who is chosen, who of those met is estimated and where they go is the policy's: `Plain` here, `Gated` in filtered.zig.
const std = @import("std");
const layout = @import("layout");
const lists = @import("list.zig");
const page_ways = @import("page_ways.zig");
const state = @import("search_state.zig");
const Search = state.Search;
const assert = std.debug.assert;

/// Neighbors met ahead of estimation; as many codes are on their way.
const ahead = 32;
const estimated_together = lists.List.insert_max;
/// Vertices whose links are on their way.
const chosen_ahead = 3;

/// Beside a larger part most queries have few answers or none. There it is enough to come as near as the way goes: what
/// leads nearer is followed, and what may lie before the k-th nearest.
pub const Beside = struct {
    /// The k-th nearest by estimates of all parts.
    reach: f32,
    /// So many of the list are followed without coming nearer.
    patience: u32,
    nearest: f32 = std.math.inf(f32),
    /// Followed since the nearest was found.
    since: u32 = 0,

    /// `rows` of the part, of which the larger one has `most`: a part as large holds as many answers, and ends no earlier.
    pub fn init(reach: f32, list_size: u32, rows: u32, most: u32) Beside {
        const share = 2 * @as(f32, @floatFromInt(rows)) / @as(f32, @floatFromInt(most));
        return .{ .reach = reach, .patience = @intFromFloat(@as(f32, @floatFromInt(list_size)) * std.math.clamp(share, 0.25, 1)) };
    }

    fn has_come_near(self: *Beside, search: *const Search, next: lists.Candidate) bool {
        const nearest = search.list.items[0].distance();
        if (nearest < self.nearest) {
            self.nearest = nearest;
            self.since = 0;
        }
        self.since += 1;
        if (self.since <= self.patience) return false;
        const distance = next.distance();
        const sigma = search.query.sigma_upper(&search.shared.reader.codes, next.vertex(), distance);
        return distance - search.parameters.sigma * sigma > self.reach;
    }
};

/// Every vertex may be a candidate.
const Plain = struct {
    /// Vertices that one step adds to `fresh` beside neighbors.
    pub const added_max = 0;

    /// The vertex to follow next.
    pub inline fn choose(_: *Plain, search: *Search) ?u32 {
        const place = search.list.nearest_unexpanded() orelse return null;
        if (search.beside) |*beside| if (beside.has_come_near(search, search.list.items[place])) return null;
        search.list.mark_expanded(place);
        return search.list.items[place].vertex();
    }

    /// `vertex` was followed, `fresh[at..][0..met]` were met: how many from there on are to be estimated. Null ends
    /// navigation.
    pub inline fn keep(_: *Plain, _: *Search, _: u32, _: u32, met: u32) ?u32 {
        return met;
    }

    /// The vertices from `fresh[at]` on with their distances: a bit for each that may be followed.
    pub inline fn offer(_: *Plain, search: *Search, at: u32, count: u32) u32 {
        return search.list.insert_many(search.fresh[at..][0..estimated_together], search.distances[0..estimated_together], count);
    }

    /// `fresh[head..tail]` moved to the front.
    pub inline fn move(_: *Plain, _: u32, _: u32) void {}
};

/// Best first, until every candidate was followed that is near enough (`lists.List.Stop`).
pub fn navigate(search: *Search) state.PageError!void {
    assert(search.state == .graph);
    var plain: Plain = .{};
    return run(search, &plain);
}

/// Until the policy chooses nothing any more.
pub fn run(search: *Search, policy: anytype) state.PageError!void {
    const Policy = @typeInfo(@TypeOf(policy)).pointer.child;
    comptime {
        // What was met ahead, and what one step more adds.
        assert(Search.fresh_max >= Search.fresh_max / 4 + ahead + layout.adjacency.neighbors_max + Policy.added_max + estimated_together);
    }
    if (search.shared.reader.page_ways != null) return page_ways.run(search, policy);
    const links = &search.shared.reader.links.?;
    const codes = &search.shared.reader.codes;
    var chosen: Chosen = .{};
    var head: u32 = 0; // fresh[head..tail] were met and are not estimated yet
    var tail: u32 = 0;
    var asked: u32 = 0; // the codes of fresh[head..asked] are on their way
    while (true) {
        while (tail - head < ahead) {
            const vertex = chosen.next(search, policy) orelse break;
            const ids = links.decode_list(vertex.number, vertex.list, &search.neighbors) catch return error.BadList;
            search.cost.expanded += 1;
            const met = search.visited.insert_new(ids, search.fresh[tail..]);
            tail += policy.keep(search, vertex.number, tail, met) orelse return;
        }
        if (head == tail) return;
        const ask_until = @min(tail, head + ahead);
        codes.prefetch(search.fresh[asked..@max(asked, ask_until)]);
        asked = @max(asked, ask_until);
        const count = @min(estimated_together, tail - head);
        search.query.estimate_asked(codes, search.fresh[head..][0..count], count, search.distances[0..count]);
        search.cost.estimates += count;
        var offered = policy.offer(search, head, count);
        while (offered != 0) : (offered &= offered - 1) links.prefetch(search.fresh[head + @ctz(offered)]);
        head += count;
        if (head >= Search.fresh_max / 4) {
            std.mem.copyForwards(u32, search.fresh[0 .. tail - head], search.fresh[head..tail]);
            policy.move(head, tail);
            asked -= head;
            tail -= head;
            head = 0;
        }
    }
}

/// Vertices to be followed, the first chosen first; as many as may wait are chosen at once. What it takes to find a list was
/// asked for when its vertex was offered, which may be just before it is chosen: so the list is looked for a step later.
const Chosen = struct {
    vertices: [chosen_ahead]Vertex = undefined,
    count: u32 = 0,
    /// Of the first so many the list was found, and is on its way.
    found: u32 = 0,

    const Vertex = struct { number: u32, list: layout.links.Links.List };

    inline fn next(self: *Chosen, search: *Search, policy: anytype) ?Vertex {
        const links = &search.shared.reader.links.?;
        // Those chosen a step before: what finding their lists takes has come meanwhile.
        for (self.vertices[self.found..self.count]) |*vertex| vertex.list = links.prefetch_list(vertex.number);
        self.found = self.count;
        while (self.count < chosen_ahead) : (self.count += 1) {
            self.vertices[self.count].number = policy.choose(search) orelse break;
        }
        if (self.count == 0) return null;
        if (self.found == 0) {
            self.vertices[0].list = links.prefetch_list(self.vertices[0].number);
            self.found = 1;
        }
        const first = self.vertices[0];
        self.count -= 1;
        self.found -= 1;
        for (0..self.count) |i| self.vertices[i] = self.vertices[i + 1];
        return first;
    }
};
