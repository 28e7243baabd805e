//! Centers that vectors are coded around: a code's error grows with the length of what is coded, and a vector less the
//! nearest of a few hundred centers is shorter than less the mean alone. Docs: docs/rabitq.md.
const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const dispatch = @import("dispatch.zig");
const abi = @import("kernels/abi.zig");

comptime {
    assert(abi.centers_max == base.limits.centers_max);
}

pub const Centers = struct {
    dim: u32,
    /// `count()` times `dim`, in the codes' space (centered, rotated).
    rows: []const f32,
    /// |c|² of each
    norms2: []const f32,

    /// Least number of vectors per center: its own bytes are memory, too.
    const vectors_each = 256;
    const rounds = 8;
    const sample_each = 16;
    const sample_min = 1 << 10;
    const sample_max = 1 << 15;
    const sample_bytes_max = 16 << 20;

    pub fn count_for(n: u64) u32 {
        return @intCast(std.math.clamp(n / vectors_each, 1, base.limits.centers_max));
    }

    /// Rows that `train` should see of n, within `room_bytes` if these hold enough.
    pub fn sample_for(n: u64, dim: u32, room_bytes: u64) u32 {
        const room = @min(room_bytes, sample_bytes_max) / (@as(u64, dim) * @sizeOf(f32));
        const wanted = @min(@max(n / 8, sample_min), sample_max, room);
        return @intCast(@min(n, @max(wanted, sample_each * @as(u64, count_for(n)))));
    }

    /// k-means from rows that lie evenly over `sample`, so the result depends on nothing but the arguments.
    pub fn train(alloc: std.mem.Allocator, dim: u32, sample: []const f32, wanted: u32) std.mem.Allocator.Error!Centers {
        return train_beside(alloc, dim, sample, &.{}, wanted);
    }

    /// `wanted` centers: the given ones stay where they are, the others begin at rows far from these.
    pub fn train_beside(alloc: std.mem.Allocator, dim: u32, sample: []const f32, given: []const f32, wanted: u32) std.mem.Allocator.Error!Centers {
        const sampled = sample.len / dim;
        const first = given.len / dim;
        assert(wanted > 0 and first <= wanted and wanted <= base.limits.centers_max and wanted - first <= sampled);
        const rows = try alloc.alloc(f32, wanted * @as(usize, dim));
        errdefer alloc.free(rows);
        const norms2 = try alloc.alloc(f32, wanted);
        errdefer alloc.free(norms2);
        const sums = try alloc.alloc(f64, rows.len);
        defer alloc.free(sums);
        const loads = try alloc.alloc(u32, wanted);
        defer alloc.free(loads);
        @memcpy(rows[0..given.len], given);
        if (first == 0) {
            for (0..wanted) |i| @memcpy(rows[i * dim ..][0..dim], sample[i * sampled / wanted * dim ..][0..dim]);
        } else {
            measure(rows[0..given.len], norms2[0..first], dim);
            const known: Centers = .{ .dim = dim, .rows = rows[0..given.len], .norms2 = norms2[0..first] };
            const each = known.spread(sample) / @as(f64, @floatFromInt(@max(1, wanted - first)));
            var behind: f64 = 0;
            var i: usize = 0;
            for (first..wanted, 0..) |center, number| {
                // Rows count by their squared distances.
                const until = (@as(f64, @floatFromInt(number)) + 0.5) * each;
                while (i + 1 < sampled and behind < until) : (i += 1) behind += known.gap2(sample[i * dim ..][0..dim]);
                @memcpy(rows[center * dim ..][0..dim], sample[(i -| 1) * dim ..][0..dim]);
            }
        }
        const self: Centers = .{ .dim = dim, .rows = rows, .norms2 = norms2 };
        measure(rows, norms2, dim);
        if (first == wanted) return self;
        for (0..rounds) |_| {
            @memset(sums, 0);
            @memset(loads, 0);
            for (0..sampled) |i| {
                const row = sample[i * dim ..][0..dim];
                const home = self.nearest(row);
                loads[home] += 1;
                for (sums[@as(usize, home) * dim ..][0..dim], row) |*sum, value| sum.* += value;
            }
            for (loads, 0..) |load, i| {
                if (load == 0 or i < first) continue;
                for (rows[i * dim ..][0..dim], sums[i * dim ..][0..dim]) |*value, sum| value.* = @floatCast(sum / @as(f64, @floatFromInt(load)));
            }
            measure(rows, norms2, dim);
        }
        return self;
    }

    /// Moves those from `first` on, and puts `given` in the place of the others.
    pub fn put_back(self: *Centers, given: []const f32, by: []const f32) void {
        // No other thread has them yet.
        const rows: []f32 = @constCast(self.rows);
        for (rows[given.len..], 0..) |*value, i| value.* -= by[i % self.dim];
        @memcpy(rows[0..given.len], given);
        measure(rows, @constCast(self.norms2), self.dim);
    }

    /// The squared distances of rows to the centers that are nearest to each, summed.
    pub fn spread(self: *const Centers, rows: []const f32) f64 {
        var sum: f64 = 0;
        for (0..rows.len / self.dim) |i| sum += self.gap2(rows[i * self.dim ..][0..self.dim]);
        return sum;
    }

    fn gap2(self: *const Centers, row: []const f32) f64 {
        var sum: f64 = 0;
        for (row, self.at(self.nearest(row))) |x, c| sum += (@as(f64, x) - c) * (@as(f64, x) - c);
        return sum;
    }

    fn measure(rows: []const f32, norms2: []f32, dim: u32) void {
        for (norms2, 0..) |*norm2, i| norm2.* = dispatch.kernels().sum_squares(rows.ptr + i * dim, dim);
    }

    pub fn deinit(self: *Centers, alloc: std.mem.Allocator) void {
        alloc.free(self.rows);
        alloc.free(self.norms2);
        self.* = undefined;
    }

    pub fn count(self: *const Centers) u32 {
        return @intCast(self.norms2.len);
    }

    pub fn at(self: *const Centers, center: u8) []const f32 {
        return self.rows[@as(usize, center) * self.dim ..][0..self.dim];
    }

    /// The first of those that are nearest.
    pub fn nearest(self: *const Centers, o: []const f32) u8 {
        assert(o.len == self.dim);
        const dot = dispatch.kernels().dot;
        var best: u8 = 0;
        var least = std.math.inf(f32);
        for (self.norms2, 0..) |norm2, i| {
            const gap = norm2 - 2 * dot(o.ptr, self.rows.ptr + i * self.dim, self.dim);
            if (gap < least) {
                least = gap;
                best = @intCast(i);
            }
        }
        return best;
    }
};

test "every sampled row has the nearest center, and rows around few points are coded around these" {
    const alloc = std.testing.allocator;
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const dim = 32;
    const groups = 8;
    const n = 400;
    var points: [groups * dim]f32 = undefined;
    for (&points) |*x| x.* = 100 * prng.gaussian();
    var rows: [n * dim]f32 = undefined;
    for (&rows, 0..) |*x, i| x.* = points[i / dim % groups * dim + i % dim] + prng.gaussian();
    var centers = try Centers.train(alloc, dim, &rows, groups);
    defer centers.deinit(alloc);
    try std.testing.expectEqual(groups, centers.count());
    for (0..n) |i| {
        const row = rows[i * dim ..][0..dim];
        const home = centers.nearest(row);
        var least = std.math.inf(f64);
        var own: f64 = 0;
        for (0..groups) |c| {
            var gap: f64 = 0;
            for (row, centers.at(@intCast(c))) |x, y| gap += (@as(f64, x) - y) * (x - y);
            least = @min(least, gap);
            if (c == home) own = gap;
        }
        // Of two centers in one group either may be chosen: sums of their norms' size are rounded.
        try std.testing.expect(own <= least + 2e-6 * @as(f64, centers.norms2[home]));
    }
}

test "copies of one row leave centers that nothing is near, and one center is the mean" {
    const alloc = std.testing.allocator;
    var rows: [64 * 16]f32 = @splat(3);
    var many = try Centers.train(alloc, 16, &rows, 4);
    defer many.deinit(alloc);
    try std.testing.expectEqual(0, many.nearest(rows[0..16]));
    for (&rows, 0..) |*x, i| x.* = if (i / 16 % 2 == 0) 1 else -2;
    var one = try Centers.train(alloc, 16, &rows, 1);
    defer one.deinit(alloc);
    for (one.at(0)) |x| try std.testing.expectApproxEqAbs(-0.5, x, 1e-6);
}

test "centers beside others that stay are where rows have none" {
    const alloc = std.testing.allocator;
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const dim = 16;
    const n = 600;
    var points: [6 * dim]f32 = undefined;
    for (&points) |*x| x.* = 100 * prng.gaussian();
    var rows: [n * dim]f32 = undefined;
    for (&rows, 0..) |*x, i| x.* = points[i / dim % 6 * dim + i % dim] + prng.gaussian();
    const given = points[0 .. 3 * dim];
    var own = try Centers.train_beside(alloc, dim, &rows, given, 12);
    defer own.deinit(alloc);
    try std.testing.expectEqual(12, own.count());
    try std.testing.expectEqualSlices(f32, given, own.rows[0..given.len]);
    var few = try Centers.train_beside(alloc, dim, &rows, given, 3);
    defer few.deinit(alloc);
    try std.testing.expectEqualSlices(f32, given, few.rows);
    // Each coordinate of each row has the variance 1 around its point; without centers of its own it is thousands.
    try std.testing.expect(own.spread(&rows) < 2 * n * dim);
    try std.testing.expect(few.spread(&rows) > 100 * n * dim);
    const by: [dim]f32 = @splat(2);
    const third = own.at(3)[5];
    own.put_back(points[3 * dim ..], &by);
    try std.testing.expectEqualSlices(f32, points[3 * dim ..], own.rows[0..given.len]);
    try std.testing.expectEqual(third - 2, own.at(3)[5]);
    try std.testing.expectApproxEqRel(dispatch.kernels().sum_squares(own.at(3).ptr, dim), own.norms2[3], 1e-6);
}

test "there are as many centers as vectors can pay for" {
    for ([_]u64{ 1, 5, 255, 256, 1000, 1 << 16, 1 << 30 }) |n| {
        const count = Centers.count_for(n);
        try std.testing.expect(count >= 1 and count <= base.limits.centers_max and count <= @max(1, n / 256));
        for ([_]u32{ 16, 128, 8192 }) |dim| {
            for ([_]u64{ 0, 4 << 20, std.math.maxInt(u64) }) |room_bytes| {
                const sample = Centers.sample_for(n, dim, room_bytes);
                try std.testing.expect(sample >= count and sample <= n);
                try std.testing.expect(sample <= Centers.sample_each * count or @as(u64, sample) * dim * @sizeOf(f32) <= room_bytes);
            }
        }
    }
}
