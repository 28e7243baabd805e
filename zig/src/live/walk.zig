//! A walk over the delta's graph: best first, with exact distances. A row that does not count (dead, failing a filter, not in the view)
//! is navigated through, and takes no place among the nearest.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const links_room = @import("links.zig");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const Hit = scan.Hit;
const Links = links_room.Links;
const degree = links_room.degree;

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
    looks: u32 = 0,

    /// What ends a walk before it has found what its list takes.
    pub const Until = struct {
        /// Whatever is nearer is followed, be the list full or not.
        within: f32 = -std.math.inf(f32),
        /// More are not looked at.
        looks: u64 = std.math.maxInt(u64),
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

    /// The nearest different vectors of which a row passes, in order, each by the row that has its neighbors; null where
    /// that would look at too many rows.
    pub fn run(self: *Walk, query: scan.Point, list_size: usize, passing: ?BitSet, until: Until) error{OutOfMemory}!?[]Hit {
        self.visited.clear();
        self.frontier.clearRetainingCapacity();
        self.looks = 0;
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
        try self.look(query, seeds[0..count], passing, &nearest);
        var buffer: [degree]u32 = undefined;
        while (self.frontier.removeOrNull()) |next| {
            if (nearest.is_full() and next.farther(nearest.farthest()) and next.distance > until.within) break;
            if (self.looks > until.looks) return null;
            try self.look(query, self.links.neighbors(next.row, &buffer), passing, &nearest);
        }
        return nearest.sorted();
    }

    fn look(self: *Walk, query: scan.Point, rows: []u32, passing: ?BitSet, nearest: *scan.Nearest) error{OutOfMemory}!void {
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
        self.looks += @intCast(count);
        for (rows[0..count]) |row| {
            const hit: Hit = .{ .distance = self.measure.distance(query, self.links.vector(row)), .row = row };
            if (nearest.is_full() and hit.farther(nearest.farthest())) continue;
            self.frontier.add(hit) catch unreachable; // room was made
            var copy: ?u32 = row;
            while (copy) |one| : (copy = self.links.copy_after(one)) {
                if (self.counts(one, passing)) break nearest.offer(hit);
                self.looks += 1;
            }
        }
    }

    fn counts(self: *const Walk, row: u32, passing: ?BitSet) bool {
        return row < self.rows and if (passing) |set| set.contains(row) else true;
    }
};
