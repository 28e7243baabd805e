//! Vertices that a query has met: the candidate list, the frontier of vertices that only lead
//! somewhere, and the set of all it has met. All of fixed size, allocated when the index is opened.
const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const quant = @import("quant");
const assert = std.debug.assert;

pub const Candidate = quant.Candidate;

/// A vertex with a distance.
pub const Found = extern struct {
    distance: f32,
    vertex: u32,
};

/// The L best vertices met so far that may be answers, ascending by distance.
pub const List = struct {
    /// Places behind the longest list are loaded and stored with it.
    items: []Candidate,
    kernels: *const quant.Kernels,
    limit: u32 = 0,
    len: u32 = 0,
    /// No candidate before this place is unexpanded.
    cursor: u32 = 0,
    stop: Stop = .never,

    /// The end of a walk before it has followed all of the list: the nearest `followed` are followed, and others while they
    /// are no farther than `share` times the k-th nearest.
    pub const Stop = struct {
        k: u32,
        followed: u32,
        share: f32,

        pub const never: Stop = .{ .k = 1, .followed = std.math.maxInt(u32), .share = 1 };
    };

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!List {
        return .{ .items = try base.alloc_untouched(allocator, Candidate, capacity + padding), .kernels = quant.kernels() };
    }

    pub fn deinit(self: *List, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.items);
    }

    pub fn reset(self: *List, limit: u32) void {
        assert(limit > 0 and limit + padding <= self.items.len);
        @memset(self.items[0 .. limit + padding], .none);
        self.limit = limit;
        self.len = 0;
        self.cursor = 0;
        self.stop = .never;
    }

    /// A distance must be below this to enter.
    pub inline fn bound(self: *const List) f32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const near = self.reach();
        return if (self.len < self.limit) near else @min(near, self.items[self.len - 1].distance());
    }

    /// Candidates that are farther are not followed.
    pub inline fn reach(self: *const List) f32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        if (self.len < self.stop.followed) return std.math.inf(f32);
        const sure = self.items[self.stop.followed - 1].distance();
        return @max(sure, self.stop.share * self.items[self.stop.k - 1].distance());
    }

    /// The vertex must not be in the list. False when it is too far.
    pub inline fn insert(self: *List, vertex: u32, distance: f32) bool {
        return distance < self.bound() and self.insert_near(vertex, distance);
    }

    fn insert_near(self: *List, vertex: u32, distance: f32) bool {
        const vertices = [1]u32{vertex} ++ [1]u32{0} ** (insert_max - 1);
        const distances = [1]f32{distance} ++ [1]f32{0} ** (insert_max - 1);
        return self.insert_many(&vertices, &distances, 1) != 0;
    }

    pub const insert_max = quant.inserted_max;
    const padding = quant.list_padding;

    /// The first `count` of them, none of which is in the list: a bit for each that was not too far.
    pub inline fn insert_many(self: *List, vertices: *const [insert_max]u32, distances: *const [insert_max]f32, count: u32) u32 {
        assert(count <= insert_max);
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const next = if (self.cursor < self.len) self.items[self.cursor].key else Candidate.none.key;
        var inserted: quant.Inserted = undefined;
        self.kernels.insert_nearest(self.items.ptr, self.len, self.limit, self.reach(), vertices, distances, count, &inserted);
        self.len = inserted.len;
        if (inserted.nearest.key < next) {
            while (self.cursor > 0 and self.items[self.cursor - 1].key >= inserted.nearest.key) self.cursor -= 1;
        }
        return inserted.entered;
    }

    /// The nearest candidate whose links were not followed.
    pub inline fn nearest_unexpanded(self: *List) ?u32 {
        while (self.cursor < self.len) : (self.cursor += 1) {
            if (self.items[self.cursor].expanded()) continue;
            return if (self.items[self.cursor].distance() <= self.reach()) self.cursor else null;
        }
        return null;
    }

    pub inline fn mark_expanded(self: *List, place: u32) void {
        self.items[place].key |= 1;
    }

    pub fn unmark(self: *List, place: u32) void {
        self.items[place].key &= ~@as(i64, 1);
        self.cursor = @min(self.cursor, place);
    }

    pub fn slice(self: *const List) []Candidate {
        return self.items[0..self.len];
    }
};

/// How many of these candidates, which ascend, are within a distance given by its rank.
pub fn count_within(candidates: []const Candidate, rank: i32) usize {
    return std.sort.upperBound(Candidate, candidates, rank, struct {
        fn order(wanted: i32, candidate: Candidate) std.math.Order {
            return std.math.order(wanted, candidate.rank());
        }
    }.order);
}

/// The distance of a rank.
pub fn distance_of(rank: i32) f32 {
    return (Candidate{ .key = @as(i64, rank) << 32 }).distance();
}

/// A heap of vertices that may not be answers but lead on. When full, newcomers are dropped.
pub const Frontier = struct {
    items: []Found,
    len: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!Frontier {
        return .{ .items = try base.alloc_untouched(allocator, Found, capacity) };
    }

    pub fn deinit(self: *Frontier, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.items);
    }

    pub fn push(self: *Frontier, vertex: u32, distance: f32) void {
        if (self.len == self.items.len) return;
        var at = self.len;
        self.len += 1;
        while (at > 0) {
            const parent = (at - 1) / 2;
            if (self.items[parent].distance <= distance) break;
            self.items[at] = self.items[parent];
            at = parent;
        }
        self.items[at] = .{ .distance = distance, .vertex = vertex };
    }

    pub inline fn nearest(self: *const Frontier) f32 {
        return if (self.len == 0) std.math.inf(f32) else self.items[0].distance;
    }

    pub fn pop(self: *Frontier) u32 {
        assert(self.len > 0);
        const top = self.items[0].vertex;
        self.len -= 1;
        const last = self.items[self.len];
        var at: u32 = 0;
        while (true) {
            var child = 2 * at + 1;
            if (child >= self.len) break;
            if (child + 1 < self.len and self.items[child + 1].distance < self.items[child].distance) child += 1;
            if (last.distance <= self.items[child].distance) break;
            self.items[at] = self.items[child];
            at = child;
        }
        self.items[at] = last;
        return top;
    }
};

/// The vertices met, by open addressing of buckets. It starts small, so that clearing it is cheap, and doubles as it fills; at
/// its limit it answers "met before" to everything, which ends a search early but never wrongly.
pub const Visited = struct {
    halves: [2][]u32,
    current: u1 = 0,
    mask: u32 = 0,
    count: u32 = 0,

    const empty = std.math.maxInt(u32);
    /// Places that are looked at together. They fill from the first one on, and a full bucket goes on in the next.
    const bucket_size = 8;
    const size_min = 256;

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!Visited {
        assert(std.math.isPowerOfTwo(capacity) and capacity >= size_min);
        const first = try base.alloc_untouched(allocator, u32, capacity);
        errdefer base.free_untouched(allocator, first);
        return .{ .halves = .{ first, try base.alloc_untouched(allocator, u32, capacity) } };
    }

    pub fn deinit(self: *Visited, allocator: std.mem.Allocator) void {
        for (self.halves) |half| base.free_untouched(allocator, half);
    }

    pub fn reset(self: *Visited, expected: u32) void {
        const size = std.math.ceilPowerOfTwoAssert(u32, std.math.clamp(expected * 2, size_min, @as(u32, @intCast(self.halves[0].len))));
        self.current = 0;
        self.mask = size - 1;
        self.count = 0;
        @memset(self.halves[0][0..size], empty);
    }

    /// Size of the current table; smaller tables used before are not counted.
    pub fn touched_bytes(self: *const Visited) usize {
        return @sizeOf(u32) * (@as(usize, self.mask) + 1);
    }

    inline fn hash(vertex: u32) u32 {
        return @truncate((vertex *% @as(u64, 0x9e3779b97f4a7c15)) >> 32);
    }

    /// The place of a vertex in a table, or the place where it would be.
    inline fn find(table: [*]const u32, mask: u32, vertex: u32) struct { at: u32, new: bool } {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const Bucket = @Vector(bucket_size, u32);
        const Bits = std.meta.Int(.unsigned, bucket_size);
        var start = hash(vertex) & mask & ~@as(u32, bucket_size - 1);
        while (true) : (start = (start + bucket_size) & mask) {
            const bucket: Bucket = table[start..][0..bucket_size].*;
            const same: Bits = @bitCast(bucket == @as(Bucket, @splat(vertex)));
            const free: Bits = @bitCast(bucket == @as(Bucket, @splat(empty)));
            if (same | free != 0) return .{ .at = start + @ctz(same | free), .new = same == 0 };
        }
    }

    pub fn contains(self: *const Visited, vertex: u32) bool {
        return !find(self.halves[self.current].ptr, self.mask, vertex).new;
    }

    /// True when the vertex was not there before.
    pub inline fn insert(self: *Visited, vertex: u32) bool {
        var new: [1]u32 = undefined;
        return self.insert_new(&.{vertex}, &new) == 1;
    }

    /// Room for this many more. False when there will never be.
    inline fn reserve(self: *Visited, count: u32) bool {
        while ((self.count + count) * 3 > self.mask * 2) {
            if (self.mask + 1 == self.halves[0].len) return false;
            self.grow();
        }
        return true;
    }

    /// Writes those of `vertices` that were not there before to `new`, and returns how many they are; `new` has room
    /// for all. Whether a vertex is new is a coin's throw, and so is where it stands: nothing branches on either here.
    pub inline fn insert_new(self: *Visited, vertices: []const u32, new: []u32) u32 {
        assert(new.len >= vertices.len);
        if (!self.reserve(@intCast(vertices.len))) return 0;
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const table = self.halves[self.current].ptr;
        const mask = self.mask;
        var count: u32 = 0;
        for (vertices) |vertex| {
            const found = find(table, mask, vertex);
            table[found.at] = vertex;
            new[count] = vertex;
            count += @intFromBool(found.new);
        }
        self.count += count;
        return count;
    }

    noinline fn grow(self: *Visited) void {
        const old = self.halves[self.current][0 .. self.mask + 1];
        self.current ^= 1;
        self.mask = self.mask * 2 + 1;
        const new = self.halves[self.current][0 .. self.mask + 1];
        @memset(new, empty);
        for (old) |vertex| {
            if (vertex != empty) new[find(new.ptr, self.mask, vertex).at] = vertex;
        }
    }
};

/// The k best answers by full distance, ascending; equal distances by lower vertex. More than k may be held, for who
/// looks closer in the end: whatever is read and followed goes by the k-th all the same.
pub const Results = struct {
    items: []Found,
    k: u32 = 0,
    /// The number of candidates that are kept.
    limit: u32 = 0,
    len: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, capacity: u32) error{OutOfMemory}!Results {
        return .{ .items = try base.alloc_untouched(allocator, Found, capacity) };
    }

    pub fn deinit(self: *Results, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.items);
    }

    pub fn reset(self: *Results, k: u32, spare: u32) void {
        assert(k > 0 and k + spare <= self.items.len);
        self.k = k;
        self.limit = k + spare;
        self.len = 0;
    }

    /// The k-th distance, once there are k.
    pub inline fn bound(self: *const Results) f32 {
        return if (self.len < self.k) std.math.inf(f32) else self.items[self.k - 1].distance;
    }

    /// The distance at that place, from 1 on; infinity where nothing stands.
    pub fn nth(self: *const Results, place: u32) f32 {
        return if (self.len < place) std.math.inf(f32) else self.items[place - 1].distance;
    }

    /// Farther results are not held.
    pub inline fn reach(self: *const Results) f32 {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        return if (self.len < self.limit) std.math.inf(f32) else self.items[self.len - 1].distance;
    }

    /// For a vertex that may be among the results already: then nothing changes.
    pub fn insert_once(self: *Results, vertex: u32, distance: f32) bool {
        if (!(distance <= self.reach())) return false;
        return !self.contains(vertex) and self.insert(vertex, distance);
    }

    fn contains(self: *const Results, vertex: u32) bool {
        const together = 16;
        var rest = self.slice();
        while (rest.len >= together) : (rest = rest[together..]) {
            var vertices: [together]u32 = undefined;
            for (rest[0..together], &vertices) |found, *one| one.* = found.vertex;
            if (@reduce(.Or, @as(@Vector(together, u32), vertices) == @as(@Vector(together, u32), @splat(vertex)))) return true;
        }
        for (rest) |found| if (found.vertex == vertex) return true;
        return false;
    }

    /// The vertex must not be among the results. True when it entered.
    pub inline fn insert(self: *Results, vertex: u32, distance: f32) bool {
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const one: Found = .{ .distance = distance, .vertex = vertex };
        if (self.len == self.limit) {
            if (!precedes(one, self.items[self.len - 1])) return false;
        } else self.len += 1;
        var at = self.len - 1;
        // The search for the place and the move of all behind it are faster than single steps where these are many.
        if (at > stepped_max) at = self.make_room(at, one);
        while (at > 0 and precedes(one, self.items[at - 1])) : (at -= 1) self.items[at] = self.items[at - 1];
        self.items[at] = one;
        return true;
    }

    /// The longest results whose items move in single steps.
    const stepped_max = 128;

    /// Moves the items behind `one` by one place, over the last, and returns the place of `one`.
    noinline fn make_room(self: *Results, last: u32, one: Found) u32 {
        const at = std.sort.lowerBound(Found, self.items[0..last], one, struct {
            fn order(wanted: Found, found: Found) std.math.Order {
                return if (precedes(found, wanted)) .gt else .lt;
            }
        }.order);
        @memmove(self.items[at + 1 .. last + 1], self.items[at..last]);
        return @intCast(at);
    }

    inline fn precedes(one: Found, other: Found) bool {
        return one.distance < other.distance or (one.distance == other.distance and one.vertex < other.vertex);
    }

    pub fn slice(self: *const Results) []const Found {
        return self.items[0..self.len];
    }
};

const testing = std.testing;

test "a list keeps the nearest in order and hands out the nearest unexpanded" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    var list = try List.init(testing.allocator, 64);
    defer list.deinit(testing.allocator);
    for (0..200) |_| {
        list.reset(random.intRangeAtMost(u32, 1, 64));
        var all: [300]f32 = undefined;
        for (&all, 0..) |*distance, i| {
            distance.* = @floatFromInt(random.intRangeLessThan(i32, -500, 500)); // inner products are negative
            _ = list.insert(@intCast(i), distance.*);
            if (random.uintLessThan(u32, 4) == 0) {
                if (list.nearest_unexpanded()) |place| {
                    for (list.slice()[0..place]) |candidate| try testing.expect(candidate.expanded());
                    list.mark_expanded(place);
                }
            }
        }
        std.mem.sort(f32, &all, {}, std.sort.asc(f32));
        for (list.slice(), all[0..list.len]) |candidate, distance| try testing.expectEqual(distance, candidate.distance());
    }
}

test "a walk that ends by distance has followed the nearest, and nothing that is far" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    var list = try List.init(testing.allocator, 64);
    defer list.deinit(testing.allocator);
    for (0..500) |_| {
        list.reset(random.intRangeAtMost(u32, 8, 64));
        const k = random.intRangeAtMost(u32, 1, 8);
        const share = 1 + random.float(f32);
        list.stop = .{ .k = k, .followed = @max(k, list.limit / 4), .share = share };
        var met: [300]f32 = undefined;
        var count: u32 = 0;
        while (count == 0 or list.nearest_unexpanded() != null) {
            if (list.nearest_unexpanded()) |place| {
                const distance = list.items[place].distance();
                try testing.expect(place < list.stop.followed or distance <= share * list.items[k - 1].distance());
                list.mark_expanded(place);
            }
            for (0..random.uintAtMost(u32, 9)) |_| {
                if (count == met.len) break;
                met[count] = 100 * random.float(f32) - 5; // estimates of copies may lie below 0
                _ = list.insert(count, met[count]);
                count += 1;
            }
        }
        std.mem.sort(f32, met[0..count], {}, std.sort.asc(f32));
        for (list.slice()[0..@min(list.len, list.stop.followed)], 0..) |candidate, i| {
            try testing.expect(candidate.expanded());
            try testing.expectEqual(met[i], candidate.distance());
        }
    }
}

test "candidates within a distance are counted by its rank" {
    var list = try List.init(testing.allocator, 8);
    defer list.deinit(testing.allocator);
    list.reset(8);
    for ([_]f32{ -3, 5, 0, -0.0, 2, 5 }, 0..) |distance, vertex| _ = list.insert(@intCast(vertex), distance);
    for ([_]f32{ -4, -3, -1, 0, 2, 4, 5, 6 }, [_]usize{ 0, 1, 1, 3, 4, 4, 6, 6 }) |distance, count| {
        const rank = Candidate.of(0, distance).rank();
        try testing.expectEqual(distance, distance_of(rank));
        try testing.expectEqual(count, count_within(list.slice(), rank));
    }
}

test "the frontier gives the nearest first" {
    var frontier = try Frontier.init(testing.allocator, 100);
    defer frontier.deinit(testing.allocator);
    var prng = std.Random.DefaultPrng.init(testing.random_seed);
    for (0..120) |i| frontier.push(@intCast(i), prng.random().float(f32));
    try testing.expectEqual(100, frontier.len);
    var last: f32 = 0;
    while (frontier.len > 0) {
        try testing.expect(frontier.nearest() >= last);
        last = frontier.nearest();
        _ = frontier.pop();
    }
}

test "a visited set agrees with a map, through every doubling, and saturates instead of failing" {
    var visited = try Visited.init(testing.allocator, 1 << 12);
    defer visited.deinit(testing.allocator);
    var model: std.AutoHashMapUnmanaged(u32, void) = .empty;
    defer model.deinit(testing.allocator);
    var prng = std.Random.DefaultPrng.init(testing.random_seed);
    for (0..3) |_| {
        visited.reset(10);
        model.clearRetainingCapacity();
        for (0..4000) |_| {
            const vertex = prng.random().uintLessThan(u32, 2500);
            const new = !(try model.getOrPut(testing.allocator, vertex)).found_existing;
            try testing.expectEqual(new, visited.insert(vertex));
        }
    }
    visited.reset(10);
    for (0..100_000) |i| _ = visited.insert(@intCast(i));
    try testing.expect(visited.count < 1 << 12);
}

test "results are the k best, ties by vertex" {
    var results = try Results.init(testing.allocator, 8);
    defer results.deinit(testing.allocator);
    results.reset(3, 0);
    for ([_]u32{ 9, 4, 7, 1, 8 }) |vertex| _ = results.insert(vertex, 1);
    _ = results.insert(2, 0.5);
    var vertices: [3]u32 = undefined;
    for (results.slice(), &vertices) |found, *vertex| vertex.* = found.vertex;
    try testing.expectEqualSlices(u32, &.{ 2, 1, 4 }, &vertices);
}

test "long results are those of a sort, and hold a vertex once" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    var results = try Results.init(testing.allocator, 1000);
    defer results.deinit(testing.allocator);
    for ([_]u32{ Results.stepped_max, Results.stepped_max + 2, 700 }) |k| {
        results.reset(k, random.uintAtMost(u32, 300));
        var all: [2000]Found = undefined;
        for (&all, 0..) |*one, i| one.* = .{ .vertex = @intCast(i), .distance = @floatFromInt(random.intRangeLessThan(i32, -99, 99)) };
        random.shuffle(Found, &all);
        for (all) |one| {
            const near = one.distance <= results.reach();
            try testing.expect(near or !results.insert(one.vertex, one.distance));
            if (near) _ = results.insert_once(one.vertex, one.distance);
            if (results.contains(one.vertex)) try testing.expect(!results.insert_once(one.vertex, one.distance));
        }
        std.mem.sort(Found, &all, {}, struct {
            fn less(_: void, one: Found, other: Found) bool {
                return Results.precedes(one, other);
            }
        }.less);
        try testing.expectEqualSlices(Found, all[0..results.limit], results.slice());
        try testing.expectEqual(all[k - 1].distance, results.bound());
    }
}

test "results held beyond k do not move the bound" {
    var results = try Results.init(testing.allocator, 8);
    defer results.deinit(testing.allocator);
    results.reset(2, 2);
    try testing.expectEqual(std.math.inf(f32), results.bound());
    for ([_]f32{ 5, 3, 4, 1 }, 0..) |distance, vertex| _ = results.insert(@intCast(vertex), distance);
    try testing.expectEqual(3, results.bound());
    try testing.expectEqual(5, results.reach());
    try testing.expect(!results.insert(9, 6));
    try testing.expect(!results.insert_once(1, 3));
    try testing.expect(results.insert_once(7, 2));
    try testing.expectEqual(2, results.bound());
    try testing.expectEqual(4, results.reach());
    try testing.expectEqual(4, results.slice().len);
}
