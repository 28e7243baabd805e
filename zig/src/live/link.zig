//! The linker: gives the delta's next rows their neighbors, in steps, while others search.
//!
//! A row's candidates are what a walk for its vector finds; of these it keeps each that no kept one hides, as a build does
//! (graph/prune.zig). Each of them gets it as a neighbor in return, in a free place or in that of a neighbor that it hides.
//! The neighbor that loses its place becomes the row's own, so nothing that could be reached is lost (links.zig).
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const links_room = @import("links.zig");
const scan = @import("scan.zig");
const delta_room = @import("delta.zig");
const BitSet = base.BitSet;
const Hit = scan.Hit;
const Links = links_room.Links;
const degree = links_room.degree;

// ---- walks over links ----
//
// A walk over the delta's graph: best first, with exact distances. A row that does not count (dead, failing a filter, not in the view)
// is navigated through, and takes no place among the nearest.

/// Rows that were linked since the walk began and may be met; others are passed over.
const slack_rows = 1024;

pub const Walk = struct {
    allocator: std.mem.Allocator,
    links: *const Links,
    measure: scan.Measure,
    /// Rows below this count, if they pass. Those that came later are navigated through.
    rows: u32,
    visited: BitSet,
    frontier: std.PriorityQueue(Hit, void, nearer) = undefined,
    found: []Hit,
    /// Rows measured by the last walk.
    visits: u32 = 0,

    /// Limits that end a walk before its list is full.
    pub const Until = struct {
        /// Nearer rows are followed even if the list is full.
        within: f32 = -std.math.inf(f32),
        /// More are not looked at.
        visits: u64 = std.math.maxInt(u64),
    };

    fn nearer(_: void, a: Hit, b: Hit) std.math.Order {
        return if (b.farther(a)) .lt else .gt;
    }

    /// For walks that find up to `list_max` of the first `rows` rows, and go through the first `rows_known` and some more.
    pub fn init(allocator: std.mem.Allocator, links: *const Links, shape: scan.Shape, rows: u32, rows_known: u32, list_max: usize) error{OutOfMemory}!Walk {
        var visited = try BitSet.init(allocator, @as(usize, rows_known) + slack_rows);
        errdefer visited.deinit(allocator);
        return .{
            .allocator = allocator,
            .links = links,
            .measure = .of(shape),
            .rows = rows,
            .visited = visited,
            .frontier = .init(allocator, {}),
            .found = try allocator.alloc(Hit, list_max),
        };
    }

    /// Room for whatever it meets, so that no walk fails.
    pub fn reserve(self: *Walk) error{OutOfMemory}!void {
        try self.frontier.ensureTotalCapacity(self.visited.len);
    }

    pub fn deinit(self: *Walk) void {
        self.visited.deinit(self.allocator);
        self.frontier.deinit();
        self.allocator.free(self.found);
    }

    /// Offers the nearest that pass, and says so; false where that would look at too many rows.
    pub fn offer_to(self: *Walk, out: *scan.Nearest, query: scan.Point, list_size: usize, passing: ?BitSet, until: Until) error{OutOfMemory}!bool {
        for (try self.run(query, list_size, passing, until) orelse return false) |hit| {
            if (out.is_full() and self.measure.at_least(query, self.links.vector(hit.row)) > out.farthest().distance) break;
            const distance = self.measure.exact(query, self.links.vector(hit.row));
            var next: ?u32 = hit.row;
            while (next) |row| : (next = self.links.copy_after(row)) {
                const one: Hit = .{ .distance = distance, .row = row };
                if (out.is_full() and one.farther(out.farthest())) break;
                if (self.counts(row, passing)) out.offer(one);
            }
        }
        return true;
    }

    /// The nearest distinct vectors with a row that passes, in order, each by the row that has its neighbors; null if
    /// that would look at too many rows.
    pub fn run(self: *Walk, query: scan.Point, list_size: usize, passing: ?BitSet, until: Until) error{OutOfMemory}!?[]Hit {
        self.visited.clear();
        self.frontier.clearRetainingCapacity();
        self.visits = 0;
        var nearest: scan.Nearest = .{ .hits = self.found[0..list_size] };
        const stride = links_room.stride_of(self.rows);
        var seeds: [links_room.seeds_max]u32 = undefined;
        var count: usize = 0;
        var first: u32 = 0;
        while (first < self.rows) : (first += stride) {
            const row = if (first == 0) 0 else first + links_room.shuffled(first) % stride;
            if (row >= self.rows or (row > 0 and self.links.is_copy(row))) continue;
            seeds[count] = row;
            count += 1;
        }
        try self.visit(query, seeds[0..count], passing, &nearest);
        var buffer: [degree]u32 = undefined;
        while (self.frontier.removeOrNull()) |next| {
            if (nearest.is_full() and next.farther(nearest.farthest()) and next.distance > until.within) break;
            if (self.visits > until.visits) return null;
            try self.visit(query, self.links.neighbors(next.row, &buffer), passing, &nearest);
        }
        return nearest.sorted();
    }

    fn visit(self: *Walk, query: scan.Point, rows: []u32, passing: ?BitSet, nearest: *scan.Nearest) error{OutOfMemory}!void {
        var count: usize = 0;
        for (rows) |row| {
            if (row >= self.visited.len or !self.visited.insert_new(row)) continue;
            const vector = self.links.vector(row);
            @prefetch(vector, .{});
            @prefetch(vector + 64, .{});
            @prefetch(vector + 128, .{});
            @prefetch(vector + 192, .{});
            rows[count] = row;
            count += 1;
        }
        try self.frontier.ensureUnusedCapacity(count);
        self.visits += @intCast(count);
        for (rows[0..count]) |row| {
            const hit: Hit = .{ .distance = self.measure.distance(query, self.links.vector(row)), .row = row };
            if (nearest.is_full() and hit.farther(nearest.farthest())) continue;
            self.frontier.add(hit) catch unreachable; // room was made
            var copy: ?u32 = row;
            while (copy) |one| : (copy = self.links.copy_after(one)) {
                if (self.counts(one, passing)) break nearest.offer(hit);
                self.visits += 1;
            }
        }
    }

    fn counts(self: *const Walk, row: u32, passing: ?BitSet) bool {
        return row < self.rows and if (passing) |set| set.contains(row) else true;
    }
};

// ---- linking ----

/// So many of the newest rows are left to scans: fewer are cheaper looked at than linked.
pub const tail_rows = 256;
/// Rows that one call links at most.
pub const step_most = 8192;
/// Candidates of a row.
const list_build = 48;
/// Neighbors that a row chooses; the other places are for rows that choose it.
const chosen_max = 12;
const alpha = 1.2;
/// Before a row is linked a walk for it may be compared with a scan: once in `sample_stride` rows, or as rarely as makes
/// scans cost at most `sample_visits` distances per row.
const sample_stride = 16;
const sample_visits = 256;
pub const sample_k = 10;
/// The share of a sample's nearest that walks may miss, less than what is promised.
const missed_share = 0.001;
const list_least = 48;
const list_most = 4096;

/// The relation between rows.
const Linker = struct {
    allocator: std.mem.Allocator,
    links: *Links,
    measure: scan.Measure,
    values: [2][]f32,

    /// A row's vector as a query.
    fn point(self: *Linker, row: u32, buffer: usize) scan.Point {
        const dim = self.measure.shape.dim;
        const bytes = self.links.vector(row);
        const out = self.values[buffer];
        switch (self.measure.shape.dtype) {
            .f32 => return .of(self.measure.shape.metric, @as([*]const f32, @ptrCast(@alignCast(bytes)))[0..dim]),
            inline .f16, .u8, .i8 => |dtype| {
                const T = if (dtype == .f16) f16 else if (dtype == .u8) u8 else i8;
                for (out, @as([*]align(1) const T, @ptrCast(bytes))[0..dim]) |*x, given| x.* = if (T == f16) given else @floatFromInt(given);
            },
        }
        return .of(self.measure.shape.metric, out);
    }

    /// Whether a kept neighbor hides one at `distance`, which is `between` away from it (graph/types.zig).
    fn hides(self: *const Linker, between: f32, distance: f32) bool {
        if (self.measure.shape.metric != .ip) return alpha * between < distance;
        return between < if (distance < 0) alpha * distance else distance / alpha;
    }

    fn link(self: *Linker, walk: *Walk, row: u32) error{OutOfMemory}!void {
        if (row == 0) return;
        const own = self.point(row, 0);
        walk.rows = row;
        const candidates = (try walk.run(own, list_build, null, .{})).?;
        Links.set_float(&self.links.visits, 0.98 * Links.float(&self.links.visits) + 0.02 * @as(f32, @floatFromInt(walk.visits)) / list_build);
        for (candidates) |candidate| {
            if (self.are_equal(candidate.row, row)) return self.links.add_copy(candidate.row, row);
        }
        var chosen: [chosen_max]Hit = undefined;
        var count: usize = 0;
        for (candidates) |candidate| {
            if (count == chosen_max) break;
            if (self.is_hidden(candidate, chosen[0..count])) continue;
            chosen[count] = candidate;
            count += 1;
        }
        for (chosen[0..count]) |one| self.links.add(row, one.row);
        var is_reached = false;
        for (chosen[0..count]) |one| {
            if (self.answer(row, own, one, false)) is_reached = true;
        }
        if (!is_reached) _ = self.answer(row, own, chosen[0], true);
    }

    fn are_equal(self: *const Linker, a: u32, b: u32) bool {
        const bytes = self.measure.shape.row_bytes();
        return std.mem.eql(u8, self.links.vector(a)[0..bytes], self.links.vector(b)[0..bytes]);
    }

    fn is_hidden(self: *Linker, candidate: Hit, chosen: []const Hit) bool {
        if (chosen.len == 0) return false;
        const from = self.point(candidate.row, 1);
        for (chosen) |one| {
            if (self.hides(self.measure.distance(from, self.links.vector(one.row)), candidate.distance)) return true;
        }
        return false;
    }

    /// Makes `row` a neighbor of `to`, which lies as far away as it says; always where `force` says so.
    fn answer(self: *Linker, row: u32, own: scan.Point, to: Hit, force: bool) bool {
        if (self.links.has_room(to.row)) {
            self.links.add(to.row, row);
            return true;
        }
        var buffer: [degree]u32 = undefined;
        const there = self.links.neighbors(to.row, &buffer);
        const from = self.point(to.row, 1);
        var victim: ?usize = null;
        var victim_distance: f32 = 0;
        var farthest: usize = 0;
        var farthest_distance = -std.math.inf(f32);
        var nearest: usize = 0;
        var nearest_between = std.math.inf(f32);
        for (there, 0..) |neighbor, at| {
            const distance = self.measure.distance(from, self.links.vector(neighbor));
            const between = self.measure.distance(own, self.links.vector(neighbor));
            if (between < nearest_between) {
                nearest_between = between;
                nearest = at;
            }
            if (distance <= to.distance) {
                if (!force and self.hides(between, to.distance)) return false;
            } else if (self.hides(between, distance) and (victim == null or distance > victim_distance)) {
                victim = at;
                victim_distance = distance;
            }
            if (distance > farthest_distance) {
                farthest_distance = distance;
                farthest = at;
            }
        }
        const at = victim orelse if (force) nearest else if (farthest_distance > to.distance) farthest else return false;
        if (!self.lead_to(row, there[at])) return false;
        self.links.replace(to.row, at, row);
        return true;
    }

    /// Whether `row` has this neighbor, or has it now.
    fn lead_to(self: *Linker, row: u32, neighbor: u32) bool {
        var buffer: [degree]u32 = undefined;
        if (std.mem.indexOfScalar(u32, self.links.neighbors(row, &buffer), neighbor) != null) return true;
        if (!self.links.has_room(row)) return false;
        self.links.add(row, neighbor);
        return true;
    }

    /// Compares a walk for a row that is not linked with a look at all that are, and makes walks longer or shorter.
    fn sample(self: *Linker, walk: *Walk, row: u32) error{OutOfMemory}!void {
        const own = self.point(row, 0);
        walk.rows = row;
        const list_size = Links.float(&self.links.list_size);
        var hits: [2][sample_k]Hit = undefined;
        var walked: scan.Nearest = .{ .hits = &hits[0] };
        _ = try walk.offer_to(&walked, own, @intFromFloat(list_size), null, .{});
        var scanned: scan.Nearest = .{ .hits = &hits[1] };
        for (0..row) |other| {
            const number: u32 = @intCast(other);
            var norm2: [1]f32 = undefined;
            self.measure.offer(own, self.links.vector(number), 1, number, &norm2, false, &scanned);
        }
        const truth = scanned.sorted();
        if (self.are_equal(truth[0].row, row)) return; // the easiest queries, and a set may be full of them
        const bound = truth[sample_k - 1].distance;
        var missed: usize = sample_k;
        for (walked.sorted()) |hit| missed -= @intFromBool(hit.distance <= bound);
        const share = @as(f32, @floatFromInt(missed)) / sample_k;
        Links.set_float(&self.links.list_size, std.math.clamp(list_size * @exp(1.5 * (share - missed_share)), list_least, list_most));
    }
};

/// Links at most `most` rows below `end`. If another thread links, or memory is short, scans keep serving them.
pub fn link(allocator: std.mem.Allocator, links: *Links, shape: scan.Shape, end: u32, most: u32) void {
    if (links.linked.load(.monotonic) + tail_rows >= end or !links.linker.tryLock()) return;
    defer links.linker.unlock();
    const from = links.linked.load(.monotonic);
    link_some(allocator, links, shape, from, @min(end -| tail_rows, from +| most)) catch {};
}

fn link_some(allocator: std.mem.Allocator, links: *Links, shape: scan.Shape, from: u32, end: u32) error{OutOfMemory}!void {
    if (from >= end) return;
    const values = try allocator.alloc(f32, 2 * shape.dim);
    defer allocator.free(values);
    var linker: Linker = .{
        .allocator = allocator,
        .links = links,
        .measure = .of(shape),
        .values = .{ values[0..shape.dim], values[shape.dim..] },
    };
    var walk = try Walk.init(allocator, links, shape, from, end, list_most);
    defer walk.deinit();
    for (from..end) |number| {
        const row: u32 = @intCast(number);
        const stride = @max(sample_stride, std.math.ceilPowerOfTwoAssert(u32, row / sample_visits + 1));
        if (row >= tail_rows and links_room.shuffled(row) % stride == 0) try linker.sample(&walk, row);
        try linker.link(&walk, row);
        links.linked.store(row + 1, .release);
    }
}
