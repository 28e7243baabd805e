//! What a filter changes in a search: which vertices may be candidates, and what is followed only because it leads on.
//! The plan behind it is chosen in filter_plan.zig.
//!
//! The gated plan goes best first through passing and failing vertices alike, but only passing ones enter the list.
//!
//! - How far it goes follows from what it meets: of the list only the first list_size·√s candidates count, s being the
//!   share of passing vertices among those followed so far. So the list spans list_size/√s vertices, more of the graph
//!   the fewer pass, as it must to hold k of them; and labels that follow the vectors, or avoid them, are seen as such.
//! - Neighbors in the graph are placed near each other. So with each vertex the passing ones of its block, 64 vertices
//!   in placement order, are estimated: what links would reach over two or three failing vertices costs one look at 64
//!   bits. In return one failing vertex stands for the others of its block: their links lead to the same places.
//! - Where the way turns out longer than it seemed (labels whose vertices lie far from the query), the search becomes a
//!   scan, before it has spent what that costs.
const std = @import("std");
const filter_room = @import("filter");
const lists = @import("list.zig");
const filter_plan = @import("filter_plan.zig");
const parameters_file = @import("parameters.zig");
const entry = @import("entry.zig");
const state = @import("search_state.zig");
const navigation = @import("navigation.zig");
const Search = state.Search;
const Pending = @import("pending.zig").Pending;
const assert = std.debug.assert;

comptime {
    assert(scan_batch <= Search.fresh_max and Search.fresh_max % lists.List.insert_max == 0);
}

/// Vertices of a neighborhood in placement order.
const block_size = 64;
/// So few matches are all read: an answer as good as the codes.
const read_all_max = 64;
/// Vertices estimated at once in a scan.
const scan_batch = 512;
/// What the share over all rows weighs beside what was met, in vertices.
const prior = 32;
/// Vertices followed before the plan is looked at again, each time.
const review_every = 32;

/// What the gate points at.
pub const Room = struct {
    frontier: lists.Frontier,
    blocks: lists.Visited,

    const frontier_capacity = 1 << 14;
    const blocks_capacity = 1 << 14;

    pub fn init(allocator: std.mem.Allocator) error{OutOfMemory}!Room {
        var frontier = try lists.Frontier.init(allocator, frontier_capacity);
        errdefer frontier.deinit(allocator);
        return .{ .frontier = frontier, .blocks = try .init(allocator, blocks_capacity) };
    }

    pub fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        self.frontier.deinit(allocator);
        self.blocks.deinit(allocator);
    }
};

pub const Gate = struct {
    pending: Pending,
    /// What fails and may lead on.
    frontier: *lists.Frontier,
    /// Blocks whose passing vertices were estimated.
    blocks: *lists.Visited,
    /// Of the vertices met best first, how many pass and fail.
    passed: u32 = 0,
    failed: u32 = 0,
    /// Share of all rows that pass, and of those around here.
    share: f32,
    local: f32,
    /// The candidates that count: the list's first so many.
    reach: u32 = 0,
    review_at: u32 = review_every,
    /// What a scan would cost, and a vertex followed.
    scan_ns: f32,
    follow_ns: f32,

    fn init(search: *Search, case: *const filter_plan.Case) Gate {
        const room = &search.room.gate;
        room.frontier.len = 0;
        room.blocks.reset(256);
        return .{
            .pending = .{ .items = search.room.pending },
            .frontier = &room.frontier,
            .blocks = &room.blocks,
            .share = @floatCast(case.share),
            .local = @floatCast(case.share),
            .scan_ns = @floatCast(case.scan().ns),
            .follow_ns = @floatCast(case.gate_step_ns()),
        };
    }

    /// Nothing at this distance or beyond needs to be followed.
    inline fn bound(self: *const Gate, list: *const lists.List) f32 {
        return if (list.len < self.reach) std.math.inf(f32) else @min(list.reach(), list.items[self.reach - 1].distance());
    }

    /// From what was met to what counts.
    fn adapt(self: *Gate, list_size: u32, k: u32) void {
        const met: f32 = @floatFromInt(self.passed + self.failed);
        self.local = (@as(f32, @floatFromInt(self.passed)) + prior * self.share) / (met + prior);
        const wanted: u32 = @intFromFloat(@ceil(filter_plan.gate_margin * @as(f32, @floatFromInt(list_size)) * @sqrt(self.local)));
        self.reach = std.math.clamp(wanted, @min(list_size, k + filter_plan.spare), list_size);
    }

    /// So few pass around here that their neighborhoods in placement order are looked at.
    inline fn is_thin(self: *const Gate) bool {
        return self.local < filter_plan.dense_share;
    }

    /// What is left to follow, if it goes on as it went, costs more than looking at all that pass.
    fn prefers_scan(self: *const Gate) bool {
        const met: f32 = @floatFromInt(self.passed + self.failed);
        const share = (@as(f32, @floatFromInt(self.passed)) + 0.5) / (met + 0.5);
        const left = @as(f32, @floatFromInt(self.reach)) / share - met;
        // One in three of those that fail is followed, where they stand for each other (filter_plan.Case.gate).
        const followed = if (self.is_thin()) left / 3 else left;
        return followed * self.follow_ns > self.scan_ns;
    }
};

/// The first step of a search with a filter.
pub fn begin(search: *Search, filter: *const filter_room.Filter) void {
    const remote = search.parameters.filter_plan == .auto and search.is_remote();
    const plan = if (remote) .scan else filter_plan.plan_of(search.shared, filter, &search.parameters);
    if (filter.estimate() == 0) return search.change(.scan); // exact, and nothing passes
    if (search.parameters.sigma_by_plan and (plan == .scan or plan == .gate)) {
        const asked = filter_plan.sigma_share * parameters_file.sigma_of_scan(&search.parameters);
        const widest = if (search.parameters.recall > 0) @max(filter_plan.sigma_least, asked) else filter_plan.sigma_least;
        const least: f32 = @floatCast(widest * (1 - filter.estimate()));
        search.parameters.sigma = @max(search.parameters.sigma, least);
    }
    switch (plan) {
        .scan => scan(search),
        .gate => {
            var gate: Gate = .init(search, &.of(search.shared, filter, &search.parameters));
            search.list.reset(parameters_file.list_size_filtered(&search.parameters));
            search.stop_by_distance();
            gate.adapt(search.list.limit, search.parameters.k);
            search.change(.{ .gated = gate });
            entry.enter(search);
        },
        .late => {
            if (search.parameters.filter_plan == .auto) {
                const case = filter_plan.Case.of(search.shared, filter, &search.parameters);
                search.list.reset(@intFromFloat(case.late_list_size()));
            }
            search.begin_graph();
        },
        .auto => unreachable, // the planner has chosen
    }
}

/// Estimates every passing vertex, or every one without a filter; what is left in the list needs no navigation.
pub fn scan(search: *Search) void {
    const parameters = &search.parameters;
    search.list.reset(@min(@max(search.list.limit, parameters_file.scan_list_size, 4 * parameters.k), parameters_file.list_size_max));
    if (parameters.sigma_by_plan) {
        parameters.sigma = parameters_file.sigma_of_scan(parameters);
    }
    look_at_all(search);
}

/// The same with list and bound as they are.
pub fn look_at_all(search: *Search) void {
    const parameters = &search.parameters;
    search.change(.scan);
    const filter = search.request.filter orelse {
        const n = search.shared.reader.n();
        var first: u32 = 0;
        while (first < n) {
            const some = @min(scan_batch, n - first);
            for (search.fresh[0..some], first..) |*id, vertex| id.* = @intCast(vertex);
            first += some;
            estimate_passing(search, some);
        }
        return;
    };
    if (parameters.sigma_by_plan and filter.estimate() * @as(f64, @floatFromInt(search.shared.reader.n())) <= read_all_max) {
        parameters.sigma = std.math.inf(f32);
    }
    var count: usize = 0;
    if (filter.matches_found()) |found| {
        var matches = found;
        while (matches.next()) |vertex| {
            search.fresh[count] = vertex;
            count += 1;
            if (count < scan_batch) continue;
            estimate_passing(search, count);
            count = 0;
        }
    } else for (0..(search.shared.reader.n() + 63) / 64) |i| {
        var word = filter.matching_word(i);
        while (word != 0) : (word &= word - 1) {
            search.fresh[count] = @intCast(64 * i + @ctz(word));
            count += 1;
        }
        if (count < scan_batch - 64) continue;
        estimate_passing(search, count);
        count = 0;
    }
    estimate_passing(search, count);
}

/// A vertex that a page brought, not met before: into the list if it may be an answer; else it only leads on, as long
/// as it is nearer than what counts.
pub fn offer(search: *Search, vertex: u32, distance: f32) void {
    if (!(distance < search.list.bound())) return;
    const gate = &search.state.gated;
    if (search.request.filter.?.passes(vertex)) {
        _ = search.list.insert(vertex, distance);
    } else if (distance < gate.bound(&search.list)) gate.frontier.push(vertex, distance);
}

/// Best first, until nothing within what counts is left to follow.
pub fn navigate(search: *Search) state.PageError!void {
    var gated: Gated = .{ .gate = &search.state.gated, .filter = search.request.filter.? };
    return navigation.run(search, &gated);
}

/// The filter stands between what is met and what is estimated.
const Gated = struct {
    gate: *Gate,
    filter: *const filter_room.Filter,
    /// Of `fresh`, by place.
    passes: [Search.fresh_max]bool = undefined,

    pub const added_max = block_size;

    /// The nearest to follow: a candidate of the list, or what fails but lies within what counts.
    pub fn choose(self: *Gated, search: *Search) ?u32 {
        const gate = self.gate;
        const reach = gate.bound(&search.list);
        const place = search.list.nearest_unexpanded() orelse search.list.len;
        const near = if (place < @min(gate.reach, search.list.len)) search.list.items[place].distance() else std.math.inf(f32);
        while (true) {
            const failing = gate.frontier.nearest();
            if (!(failing < near and failing < reach)) break;
            const vertex = gate.frontier.pop();
            gate.failed += 1;
            if (gate.is_thin() and gate.blocks.contains(vertex / block_size)) continue;
            search.cost.filtered += 1;
            return vertex;
        }
        if (near == std.math.inf(f32)) return null;
        gate.passed += 1;
        search.list.mark_expanded(place);
        return search.list.items[place].vertex();
    }

    /// Of what was met and fails only such stay whose block nothing stands for yet; the block of the vertex is added.
    pub inline fn keep(self: *Gated, search: *Search, vertex: u32, at: u32, met: u32) ?u32 {
        const gate = self.gate;
        var count = self.ask_filter(search.fresh[at..][0..met], self.passes[at..]);
        if (gate.is_thin()) {
            const around = self.look_around(search, vertex / block_size, search.fresh[at + count ..]);
            @memset(self.passes[at + count ..][0..around], true);
            count += around;
        }
        gate.adapt(search.list.limit, search.parameters.k);
        if (search.cost.expanded >= gate.review_at) {
            gate.review_at += review_every;
            if (search.parameters.filter_plan == .auto and gate.prefers_scan()) {
                scan(search);
                return null;
            }
        }
        return count;
    }

    pub inline fn offer(self: *Gated, search: *Search, at: u32, count: u32) u32 {
        var offered: u32 = 0;
        for (search.fresh[at..][0..count], search.distances[0..count], self.passes[at..][0..count], 0..) |vertex, distance, passes, i| {
            if (passes) {
                if (!search.list.insert(vertex, distance)) continue;
            } else {
                if (!(distance < self.gate.bound(&search.list))) continue;
                self.gate.frontier.push(vertex, distance);
            }
            offered |= @as(u32, 1) << @intCast(i);
        }
        return offered;
    }

    pub inline fn move(self: *Gated, head: u32, tail: u32) void {
        std.mem.copyForwards(bool, self.passes[0 .. tail - head], self.passes[head..tail]);
    }

    /// Asks the filter for what was met and leaves in place what will be estimated: of those that fail only such whose block
    /// nothing stands for yet. Returns how many.
    fn ask_filter(self: *const Gated, met: []u32, passes: []bool) u32 {
        const gate = self.gate;
        self.filter.passes_many(met, passes[0..met.len]);
        var kept: u32 = 0;
        for (met, 0..) |id, i| {
            const pass = passes[i];
            if (!pass and gate.is_thin() and gate.blocks.contains(id / block_size)) continue;
            met[kept] = id;
            passes[kept] = pass;
            kept += 1;
        }
        return kept;
    }

    /// The passing vertices of a block that were not met before, unless it was looked at already. Returns how many.
    fn look_around(self: *const Gated, search: *Search, block: u32, out: []u32) u32 {
        if (!self.gate.blocks.insert(block)) return 0;
        var word = self.filter.matching_word(block);
        var count: u32 = 0;
        while (word != 0) : (word &= word - 1) {
            const id: u32 = block * block_size + @ctz(word);
            out[count] = id;
            count += @intFromBool(search.visited.insert(id));
        }
        return count;
    }
};

/// Estimates the first of `fresh`, which pass and were not met.
fn estimate_passing(search: *Search, count: usize) void {
    search.query.estimate(&search.shared.reader.codes, search.fresh[0..count], search.distances[0..count]);
    search.cost.estimates += @intCast(count);
    if (search.request.excluded != state.Request.excluded_none) {
        for (search.fresh[0..count], search.distances[0..count]) |vertex, *distance| {
            if (vertex == search.request.excluded) distance.* = std.math.inf(f32); // which enters no list
        }
    }
    var at: usize = 0;
    while (at < count) : (at += lists.List.insert_max) {
        const some: u32 = @intCast(@min(lists.List.insert_max, count - at));
        _ = search.list.insert_many(search.fresh[at..][0..lists.List.insert_max], search.distances[at..][0..lists.List.insert_max], some);
    }
}
