//! The last tier: what codes have found is scored again from the vectors themselves, where they are stored.
//!
//! When a search has nothing left to read of pages.bin, its results are estimates: the k nearest, and some behind them
//! (`spare`). Each has a lower and an upper bound, from the σ of full codes and what rounding adds. Whatever may be among
//! the k nearest has a lower bound that reaches the k-th upper bound: the pages of vectors.bin with those are read, all
//! at once, as far as a round may. What was scored knows its distance, so the bounds of later rounds are tighter. In the
//! end k results stand with their distances, and every other neighbor has been excluded.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const exact = @import("quant").exact;
const parameters_file = @import("parameters.zig");
const state = @import("search_state.zig");
const Search = state.Search;

/// Estimates kept beyond the k nearest. Where more of them than this lie within their error of the k-th (many copies of one
/// vector), those behind are given up.
pub const spare = 256;
pub const neighbors_max = parameters_file.k_max + spare;

/// Standard deviations of a full code's error within which its distance is taken to lie. Two neighbors change places
/// wrongly only where their errors together are twice that, which is 4.2 deviations of their difference.
const deviations = 3;
/// Root mean square of what rounding F to 16 bits leaves (quant.RecordFactors), the largest; of rounding to a step, and of
/// the few additions in float32 behind an estimate.
const factor_rounding = 1.6e-5;
const step_rounding = 0.29;
const float_rounding = 1e-6;

const Neighbor = struct {
    vertex: u32,
    /// Its distance is known.
    exact: bool = false,
    /// Of what is compared; both are the distance once it is known.
    lower: f64,
    upper: f64,
    /// As users see it.
    distance: f64 = 0,
};

/// What `Rescoring` and `Every` point at.
pub const Room = struct {
    neighbors: []Neighbor,
    uppers: []f64,

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader) error{OutOfMemory}!Room {
        const count: usize = if (reader.vectors == null) 0 else neighbors_max;
        const neighbors = try base.alloc_untouched(allocator, Neighbor, count);
        errdefer base.free_untouched(allocator, neighbors);
        return .{ .neighbors = neighbors, .uppers = try base.alloc_untouched(allocator, f64, count) };
    }

    pub fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.neighbors);
        base.free_untouched(allocator, self.uppers);
    }
};

/// What may be among the k nearest.
pub const Neighbors = struct {
    items: []Neighbor,
    len: u32 = 0,
    /// The query's squared length.
    query2: f64,

    /// Puts the query as it was given in place of what was made of it for codes.
    pub fn init(search: *Search) Neighbors {
        index.space.convert(search.request.dtype, search.request.vector, search.row);
        return .{ .items = search.room.rescoring.neighbors, .query2 = exact.sum_squares(search.row) };
    }

    pub fn slice(self: *const Neighbors) []Neighbor {
        return self.items[0..self.len];
    }

    /// A vertex with its distance, among the k nearest in order if it is one of them.
    pub fn take(self: *Neighbors, k: u32, vertex: u32, distance: f64) void {
        const one: Neighbor = .{ .vertex = vertex, .exact = true, .lower = distance, .upper = distance, .distance = distance };
        if (self.len == k) {
            if (!nearer({}, one, self.items[k - 1])) return;
        } else self.len += 1;
        const place = std.sort.lowerBound(Neighbor, self.items[0 .. self.len - 1], one, order);
        std.mem.copyBackwards(Neighbor, self.items[place + 1 .. self.len], self.items[place .. self.len - 1]);
        self.items[place] = one;
    }

    /// The nearest of those whose distance is known take the place of the estimates, and the search is done.
    pub fn finish(self: *const Neighbors, search: *Search) state.Want {
        const all = self.slice();
        var count: u32 = 0;
        for (all) |one| {
            if (!one.exact) continue;
            all[count] = one;
            count += 1;
        }
        std.mem.sortUnstable(Neighbor, all[0..count], {}, nearer);
        const results = &search.results;
        results.len = @min(count, search.parameters.k);
        for (all[0..results.len], results.items[0..results.len]) |one, *result|
            result.* = .{ .distance = @floatCast(one.distance), .vertex = one.vertex };
        search.change(.{ .done = .exact });
        return .done;
    }
};

pub const Rescoring = struct {
    neighbors: Neighbors,
    /// Room to look for the k-th upper bound.
    uppers: []f64,
};

/// Equal distances by lower vertex.
fn nearer(_: void, a: Neighbor, b: Neighbor) bool {
    return if (a.distance == b.distance) a.vertex < b.vertex else a.distance < b.distance;
}

fn order(a: Neighbor, b: Neighbor) std.math.Order {
    return if (nearer({}, a, b)) .lt else .gt;
}

/// Codes have said what they can; nothing of pages.bin is looked at any more.
pub fn begin(search: *Search) void {
    const results = search.results.slice();
    var neighbors: Neighbors = .init(search);
    for (results, neighbors.items[0..results.len]) |found, *one| one.* = bounds_of(search, found.vertex, found.distance);
    neighbors.len = @intCast(results.len);
    search.change(.{ .rescore = .{ .neighbors = neighbors, .uppers = search.room.rescoring.uppers } });
}

/// Wants the next pages of vectors.bin, or ends the search.
pub fn step(search: *Search) state.Want {
    choose(search);
    if (search.round.count == 0) return search.state.rescore.neighbors.finish(search);
    search.cost.rounds += 1;
    return .pages;
}

fn choose(search: *Search) void {
    const self = &search.state.rescore;
    const round = &search.round;
    const geometry = search.shared.reader.vectors.?.geometry;
    const reach = @min(kth_upper(self, search.parameters.k), search.told_upper);
    for (self.neighbors.slice()) |one| {
        if (one.exact or one.lower > reach) continue;
        const page = geometry.page_of(one.vertex);
        if (round.contains(page)) continue;
        if (round.count == search.parameters.burst_max) break;
        round.add(page);
    }
}

fn kth_upper(self: *const Rescoring, k: u32) f64 {
    if (self.neighbors.len < k) return std.math.inf(f64);
    return sorted_uppers(self)[k - 1];
}

fn sorted_uppers(self: *const Rescoring) []const f64 {
    const neighbors = self.neighbors.slice();
    const sorted = self.uppers[0..neighbors.len];
    for (sorted, neighbors) |*upper, one| upper.* = one.upper;
    std.mem.sortUnstable(f64, sorted, {}, std.sort.asc(f64));
    return sorted;
}

/// Upper bounds of what a search may answer, in order; good until its next step.
pub fn uppers(search: *const Search) []const f64 {
    return switch (search.state) {
        .rescore => |*self| sorted_uppers(self),
        else => &.{},
    };
}

/// A page that was wanted has arrived and is whole: every neighbor on it is scored.
pub fn on_page(search: *Search, page_number: u32, page: []const u8) void {
    const neighbors = &search.state.rescore.neighbors;
    const reader = search.shared.reader;
    const geometry = reader.vectors.?.geometry;
    for (neighbors.slice()) |*one| {
        if (one.exact or geometry.page_of(one.vertex) != page_number) continue;
        one.exact = true;
        one.distance = exact.distance(reader.metric, reader.dtype, search.row, neighbors.query2, geometry.row(page, one.vertex));
        one.lower = one.distance * index.space.compared_scale(reader.metric);
        one.upper = one.lower;
    }
}

/// Between which distances a vertex lies whose full code says `estimate`.
fn bounds_of(search: *const Search, vertex: u32, estimate: f32) Neighbor {
    const query = &search.query;
    const codes = &search.shared.reader.codes;
    // Where memory has no codes: as if it were the longest, at the center that takes most.
    const of_pages = if (search.shared.reader.page_codes) |*found| found else null;
    const norm2 = if (of_pages) |found| found.f_upper_max * found.f_upper_max * codes.norm2_per_f2 else codes.norm2_of(vertex);
    const norm: f64 = @sqrt(norm2);
    const query_norm: f64 = @sqrt(query.norm2);
    const term: f64 = if (of_pages != null) query.largest_term() else @abs(query.terms[codes.center_ids[vertex]]);
    const nearest: f64 = estimate;
    if (query.form == .product) {
        const inner = 2 * norm * query_norm;
        const error_ = deviations * (query.sigma_full(norm2, 0) + factor_rounding * inner + step_rounding * 2 * norm * query.fine_step) +
            float_rounding * (term + inner + @abs(nearest));
        return .{ .vertex = vertex, .lower = nearest - error_, .upper = nearest + error_ };
    }
    // The error grows with the way d from the vertex to the query: |estimate − d²| ≤ slope·d + rounding, solved for d.
    const way: f64 = @sqrt(@max(0, nearest));
    const inner = 2 * norm * (way + norm);
    const rounding = deviations * (factor_rounding * inner + step_rounding * 2 * norm * query.fine_step) +
        float_rounding * (term + inner + way * query_norm + way * way);
    const slope: f64 = deviations * query.sigma_full(norm2, 1);
    const least = @max(0, nearest - rounding);
    const most = @max(0, nearest + rounding);
    const low = (@sqrt(slope * slope + 4 * least) - slope) / 2;
    const high = (@sqrt(slope * slope + 4 * most) + slope) / 2;
    return .{ .vertex = vertex, .lower = low * low, .upper = high * high };
}
