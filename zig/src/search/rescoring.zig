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
const quant = @import("quant");
const exact = quant.exact;
const calibration = @import("calibration.zig");
const parameters_file = @import("parameters.zig");
const filter_room = @import("filter");
const lists = @import("list.zig");
const Round = @import("pages.zig").Round;

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

/// Memory that `Rescoring` and `Every` point at.
pub const Room = struct {
    neighbors: []Neighbor,
    uppers: []f64,

    pub fn init(allocator: std.mem.Allocator, reader: *const index.Reader) error{OutOfMemory}!Room {
        const count: usize = if (reader.vectors == null) 0 else neighbors_max;
        const neighbors = try base.alloc_untouched(allocator, Neighbor, count);
        errdefer base.free_untouched(allocator, neighbors);
        return .{ .neighbors = neighbors, .uppers = try base.alloc_untouched(allocator, f64, count) };
    }

    /// Bytes used by `count` neighbors.
    pub fn touched_bytes(self: *const Room, count: usize) usize {
        return @min(count, self.neighbors.len) * (@sizeOf(Neighbor) + @sizeOf(f64));
    }

    pub fn deinit(self: *Room, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.neighbors);
        base.free_untouched(allocator, self.uppers);
    }
};

/// Candidates for the k nearest.
pub const Neighbors = struct {
    items: []Neighbor,
    len: u32 = 0,
    /// The query's squared length.
    query2: f64,

    pub fn init(room: *const Room, query2: f64) Neighbors {
        return .{ .items = room.neighbors, .query2 = query2 };
    }

    fn slice(self: *const Neighbors) []Neighbor {
        return self.items[0..self.len];
    }

    /// A vertex with its distance, among the k nearest in order if it is one of them.
    fn take(self: *Neighbors, k: u32, vertex: u32, distance: f64) void {
        const one: Neighbor = .{ .vertex = vertex, .exact = true, .lower = distance, .upper = distance, .distance = distance };
        if (self.len == k) {
            if (!nearer({}, one, self.items[k - 1])) return;
        } else self.len += 1;
        const place = std.sort.lowerBound(Neighbor, self.items[0 .. self.len - 1], one, order);
        std.mem.copyBackwards(Neighbor, self.items[place + 1 .. self.len], self.items[place .. self.len - 1]);
        self.items[place] = one;
    }

    /// The k nearest of those whose distance is known take the place of the estimates.
    pub fn finish(self: *const Neighbors, k: u32, results: *lists.Results) void {
        const all = self.slice();
        var count: u32 = 0;
        for (all) |one| {
            if (!one.exact) continue;
            all[count] = one;
            count += 1;
        }
        std.mem.sortUnstable(Neighbor, all[0..count], {}, nearer);
        results.len = @min(count, k);
        for (all[0..results.len], results.items[0..results.len]) |one, *result|
            result.* = .{ .distance = @floatCast(one.distance), .vertex = one.vertex };
    }
};

pub const Rescoring = struct {
    neighbors: Neighbors,
    /// Room to look for the k-th upper bound.
    uppers: []f64,

    /// `neighbors` are empty.
    pub fn init(room: *const Room, neighbors: Neighbors, query: *const quant.Query, reader: *const index.Reader, estimated: []const lists.Found) Rescoring {
        var self: Rescoring = .{ .neighbors = neighbors, .uppers = room.uppers };
        for (estimated, self.neighbors.items[0..estimated.len]) |found, *one| one.* = bounds_of(query, reader, found.vertex, found.distance);
        self.neighbors.len = @intCast(estimated.len);
        return self;
    }

    /// Wants the next pages of vectors.bin. `reported_upper` is the k-th upper bound that all segments know.
    pub fn choose(self: *const Rescoring, reader: *const index.Reader, k: u32, reported_upper: f64, burst_max: u32, round: *Round) void {
        const geometry = reader.vectors.?.geometry;
        const reach = @min(self.kth_upper(k), reported_upper);
        for (self.neighbors.slice()) |one| {
            if (one.exact or one.lower > reach) continue;
            const page = geometry.page_of(one.vertex);
            if (round.contains(page)) continue;
            if (round.count == burst_max) break;
            round.add(page);
        }
    }

    fn kth_upper(self: *const Rescoring, k: u32) f64 {
        if (self.neighbors.len < k) return std.math.inf(f64);
        return self.sorted_uppers()[k - 1];
    }

    /// Upper bounds in order; good until the next call.
    pub fn sorted_uppers(self: *const Rescoring) []const f64 {
        const neighbors = self.neighbors.slice();
        const sorted = self.uppers[0..neighbors.len];
        for (sorted, neighbors) |*upper, one| upper.* = one.upper;
        std.mem.sortUnstable(f64, sorted, {}, std.sort.asc(f64));
        return sorted;
    }

    /// A page that was wanted has arrived and is whole: every neighbor on it is scored.
    pub fn on_page(self: *Rescoring, reader: *const index.Reader, row: []const f32, page_number: u32, page: []const u8) void {
        const neighbors = &self.neighbors;
        const geometry = reader.vectors.?.geometry;
        for (neighbors.slice()) |*one| {
            if (one.exact or geometry.page_of(one.vertex) != page_number) continue;
            one.exact = true;
            one.distance = exact.distance(reader.metric, reader.dtype, row, neighbors.query2, geometry.row(page, one.vertex));
            one.lower = one.distance * index.space.compared_scale(reader.metric);
            one.upper = one.lower;
        }
    }
};

/// A recall of 1: the stored vector of every row that may be an answer is scored, page by page.
///
/// The error of a code is known as a deviation. The bound that always holds (Cauchy and Schwarz) is some eleven deviations
/// wide, and nearly all rows are within it; so only the vectors themselves prove an answer. Pages on which nothing passes
/// the filter are not read.
pub const Every = struct {
    /// The k nearest of what was scored, in order.
    neighbors: Neighbors,
    next_page: u32 = 0,

    /// Wants the next pages of vectors.bin.
    pub fn choose(self: *Every, reader: *const index.Reader, filter: ?*const filter_room.Filter, burst_max: u32, round: *Round) void {
        const page_count = reader.vectors.?.geometry.page_count(reader.n());
        while (round.count < burst_max and self.next_page < page_count) : (self.next_page += 1) {
            const rows = rows_of(reader, self.next_page);
            if (filter) |one| if (!any_passes(one, rows.first, rows.end)) continue;
            round.add(self.next_page);
        }
    }

    /// A page that was wanted has arrived and is whole. Returns how many of its rows were scored.
    pub fn on_page(self: *Every, reader: *const index.Reader, row: []const f32, filter: ?*const filter_room.Filter, excluded: u32, k: u32, page_number: u32, page: []const u8) u32 {
        const neighbors = &self.neighbors;
        const geometry = reader.vectors.?.geometry;
        const rows = rows_of(reader, page_number);
        var scored: u32 = 0;
        for (rows.first..rows.end) |number| {
            const vertex: u32 = @intCast(number);
            if (vertex == excluded) continue;
            if (filter) |one| if (!one.passes(vertex)) continue;
            const distance = exact.distance(reader.metric, reader.dtype, row, neighbors.query2, geometry.row(page, vertex));
            scored += 1;
            neighbors.take(k, vertex, distance);
        }
        return scored;
    }
};

const Rows = struct { first: u32, end: u32 };

fn rows_of(reader: *const index.Reader, page: u32) Rows {
    const rows_per_page = reader.vectors.?.geometry.rows_per_page;
    const first = page * rows_per_page;
    return .{ .first = first, .end = @intCast(@min(@as(u64, first) + rows_per_page, reader.n())) };
}

/// Whether a filter lets any of these vertices through.
pub fn any_passes(filter: *const filter_room.Filter, first: u32, end: u32) bool {
    var at = first;
    while (at < end) {
        const word = filter.matching_word(at / 64) >> @intCast(at % 64);
        const width = @min(64 - at % 64, end - at);
        if (word << @intCast(64 - width) != 0) return true;
        at += width;
    }
    return false;
}

/// The cost of looking at every stored vector, without a filter.
pub fn expected_of_every(reader: *const index.Reader, parameters: *const parameters_file.Parameters) ?calibration.Expected {
    const vectors = reader.vectors orelse return null;
    const pages: f32 = @floatFromInt(vectors.geometry.page_count(reader.n()));
    const burst: f32 = @floatFromInt(parameters.burst_max);
    return .{ .recall = 1, .reads = pages, .rounds = @ceil(pages / burst), .scored = @floatFromInt(reader.n()) };
}

/// Equal distances by lower vertex.
fn nearer(_: void, a: Neighbor, b: Neighbor) bool {
    return if (a.distance == b.distance) a.vertex < b.vertex else a.distance < b.distance;
}

fn order(a: Neighbor, b: Neighbor) std.math.Order {
    return if (nearer({}, a, b)) .lt else .gt;
}

/// Between which distances a vertex lies whose full code says `estimate`.
fn bounds_of(query: *const quant.Query, reader: *const index.Reader, vertex: u32, estimate: f32) Neighbor {
    const codes = &reader.codes;
    // Without codes in memory: as if it were the longest, at the center with the largest term.
    const longest = if (reader.page_codes) |*found| found.f_upper_max else if (reader.page_products) |*found| found.f_upper_max else null;
    const norm2 = if (longest) |f_upper| f_upper * f_upper * codes.norm2_per_f2 else codes.norm2_of(vertex);
    const norm: f64 = @sqrt(norm2);
    const query_norm: f64 = @sqrt(query.norm2);
    const term: f64 = if (longest != null) query.largest_term() else @abs(query.terms[codes.center_ids[vertex]]);
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
