//! Best-first search over a graph, and the buffers that one thread needs for it.
const std = @import("std");
const builtin = @import("builtin");
const Origin = @import("types.zig").Origin;

/// A vertex with its distance in one integer that sorts by distance, then id. The lowest bit marks it as expanded and
/// does not take part in the order of different vertices.
pub const Candidate = packed struct(u64) {
    expanded: bool,
    id: u31,
    /// Bits of a float, turned so that they order as the float does: the sign of a positive one, all of a negative one.
    distance_bits: u32,

    const sign: u32 = 1 << 31;

    pub inline fn init(compared: f32, vertex: u32) Candidate {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const bits: u32 = @bitCast(compared + 0.0); // -0 becomes 0
        return .{ .expanded = false, .id = @intCast(vertex), .distance_bits = if (bits & sign == 0) bits | sign else ~bits };
    }

    pub inline fn distance(self: Candidate) f32 {
        return @bitCast(if (self.distance_bits & sign != 0) self.distance_bits ^ sign else ~self.distance_bits);
    }

    pub inline fn key(self: Candidate) u64 {
        return @as(u64, @bitCast(self)) >> 1;
    }

    pub fn less(_: void, a: Candidate, b: Candidate) bool {
        return a.key() < b.key();
    }
};

/// The nearest candidates seen so far, sorted, each at most once.
pub const CandidateList = struct {
    items: []Candidate,
    len: u32 = 0,

    inline fn accepts(self: *const CandidateList, distance: f32) bool {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        return self.len < self.items.len or distance <= self.items[self.len - 1].distance();
    }

    /// Position at which the candidate now stands; null if it was there already or is farther than all of a full list.
    pub fn insert(self: *CandidateList, candidate: Candidate) ?u32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const wanted = candidate.key();
        var low: u32 = 0;
        var high: u32 = self.len;
        while (low < high) {
            const middle = low + (high - low) / 2;
            if (self.items[middle].key() < wanted) low = middle + 1 else high = middle;
        }
        if (low == self.items.len) return null;
        if (low < self.len and self.items[low].key() == wanted) return null;
        if (self.len < self.items.len) self.len += 1;
        std.mem.copyBackwards(Candidate, self.items[low + 1 .. self.len], self.items[low .. self.len - 1]);
        self.items[low] = candidate;
        return low;
    }

    pub fn slice(self: *const CandidateList) []Candidate {
        return self.items[0..self.len];
    }
};

/// Ids seen by one search. When three quarters are taken it forgets new ones: an id then costs a second distance, and
/// the candidate list refuses the duplicate.
pub const VisitedSet = struct {
    slots: []u32,
    len: u32 = 0,

    const empty: u32 = std.math.maxInt(u32);

    pub fn clear(self: *VisitedSet) void {
        @memset(self.slots, empty);
        self.len = 0;
    }

    /// True if the id was not there.
    pub fn insert(self: *VisitedSet, id: u32) bool {
        var fresh: [1]u32 = undefined;
        return self.insert_many(&.{id}, &fresh) == 1;
    }

    /// Copies those ids that were not there to `fresh`, which has room for all, and returns how many.
    pub fn insert_many(self: *VisitedSet, ids: []const u32, fresh: []u32) usize {
        const slots = self.slots.ptr;
        const mask: u32 = @intCast(self.slots.len - 1);
        const shift: u5 = @intCast(32 - @ctz(self.slots.len));
        const len_max = self.slots.len / 4 * 3;
        var len = self.len;
        var count: usize = 0;
        for (ids) |id| {
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            var slot = (id *% 0x9E37_79B1) >> shift;
            const missing = while (true) : (slot = (slot + 1) & mask) {
                const found = slots[slot];
                if (found == id) break false;
                if (found == empty) break true;
            };
            if (!missing) continue;
            fresh[count] = id;
            count += 1;
            if (len >= len_max) continue;
            len += 1;
            slots[slot] = id;
        }
        self.len = len;
        return count;
    }
};

/// Buffers of one thread, allocated once.
pub fn Scratch(comptime Distances: type) type {
    return struct {
        const Self = @This();

        origin: Origin(Distances),
        list: CandidateList,
        visited: VisitedSet,
        /// Every vertex that a search expanded, with its distance.
        expanded: []Candidate,
        expanded_len: u32 = 0,
        ids: []u32,
        distances: []f32,

        /// `degree` is the longest neighbor list that will be read.
        pub fn init(allocator: std.mem.Allocator, distances: *const Distances, list_size: u32, degree: u32) error{OutOfMemory}!Self {
            const slots = std.math.ceilPowerOfTwoAssert(usize, std.math.clamp(@as(usize, list_size) * degree * 2, 256, 1 << 20));
            var origin = try Origin(Distances).init(allocator, distances);
            errdefer origin.deinit(allocator);
            const items = try allocator.alloc(Candidate, @max(list_size, 1));
            errdefer allocator.free(items);
            const visited = try allocator.alloc(u32, slots);
            errdefer allocator.free(visited);
            const expanded = try allocator.alloc(Candidate, @as(usize, @max(list_size, 16)) * 4);
            errdefer allocator.free(expanded);
            const ids = try allocator.alloc(u32, degree + 1);
            errdefer allocator.free(ids);
            return .{
                .origin = origin,
                .list = .{ .items = items },
                .visited = .{ .slots = visited },
                .expanded = expanded,
                .ids = ids,
                .distances = try allocator.alloc(f32, degree + 1),
            };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            self.origin.deinit(allocator);
            allocator.free(self.list.items);
            allocator.free(self.visited.slots);
            allocator.free(self.expanded);
            allocator.free(self.ids);
            allocator.free(self.distances);
            self.* = undefined;
        }

        /// Empties the buffers and puts the starts into the list. The target itself is never a candidate.
        pub fn begin(self: *Self, distances: *const Distances, target: u32, starts: []const u32) void {
            self.list.len = 0;
            self.expanded_len = 0;
            self.visited.clear();
            _ = self.visited.insert(target);
            self.origin.set(distances, target);
            for (starts) |start| {
                if (!self.visited.insert(start) or start == target) continue;
                self.origin.measure(distances, &.{start}, self.distances[0..1]);
                _ = self.list.insert(.init(self.distances[0], start));
            }
        }

        /// Expands until every candidate of the list is expanded. `source.copy(vertex, buffer)` returns a vertex's
        /// neighbors, in the buffer or elsewhere; `source.hint(vertex)` may prefetch them.
        pub fn walk(self: *Self, distances: *const Distances, source: anytype, buffer: []u32) void {
            const target = self.origin.vertex;
            var cursor: u32 = 0;
            while (cursor < self.list.len) {
                const current = &self.list.items[cursor];
                if (current.expanded) {
                    cursor += 1;
                    continue;
                }
                current.expanded = true;
                if (self.expanded_len < self.expanded.len) {
                    self.expanded[self.expanded_len] = current.*;
                    self.expanded_len += 1;
                }
                const vertex: u32 = current.id;
                if (cursor + 1 < self.list.len) source.hint(self.list.items[cursor + 1].id);
                const ids = self.ids[0..self.visited.insert_many(source.copy(vertex, buffer), self.ids)];
                const out = self.distances[0..ids.len];
                self.origin.measure(distances, ids, out);
                var lowest: u32 = cursor + 1;
                for (ids, out) |id, distance| {
                    if (id == target or !self.list.accepts(distance)) continue;
                    const position = self.list.insert(.init(distance, id)) orelse continue;
                    if (position > lowest) continue;
                    lowest = position;
                    source.hint(id); // the next to be expanded, unless a nearer one follows
                }
                cursor = lowest;
            }
        }
    };
}
