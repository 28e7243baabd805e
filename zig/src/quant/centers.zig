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

    /// A center must serve so many vectors: its own bytes are memory, too.
    const vectors_each = 256;
    const rounds = 8;
    const sample_each = 16;
    const sample_min = 1 << 10;
    const sample_max = 1 << 15;
    const sample_bytes_max = 16 << 20;

    pub fn count_for(n: u64) u32 {
        return @intCast(std.math.clamp(n / vectors_each, 1, base.limits.centers_max));
    }

    /// Rows that `train` should see of n.
    pub fn sample_for(n: u64, dim: u32) u32 {
        const room = sample_bytes_max / (@as(u64, dim) * @sizeOf(f32));
        const wanted = @min(@max(n / 8, sample_min), sample_max, room);
        return @intCast(@min(n, @max(wanted, sample_each * @as(u64, count_for(n)))));
    }

    /// k-means from rows that lie evenly over `sample`, so the result depends on nothing but the arguments.
    pub fn train(alloc: std.mem.Allocator, dim: u32, sample: []const f32, wanted: u32) std.mem.Allocator.Error!Centers {
        const sampled = sample.len / dim;
        assert(wanted > 0 and wanted <= base.limits.centers_max and wanted <= sampled);
        const rows = try alloc.alloc(f32, wanted * @as(usize, dim));
        errdefer alloc.free(rows);
        const norms2 = try alloc.alloc(f32, wanted);
        errdefer alloc.free(norms2);
        const sums = try alloc.alloc(f64, rows.len);
        defer alloc.free(sums);
        const loads = try alloc.alloc(u32, wanted);
        defer alloc.free(loads);
        for (0..wanted) |i| @memcpy(rows[i * dim ..][0..dim], sample[i * sampled / wanted * dim ..][0..dim]);
        const self: Centers = .{ .dim = dim, .rows = rows, .norms2 = norms2 };
        measure(rows, norms2, dim);
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
                if (load == 0) continue;
                for (rows[i * dim ..][0..dim], sums[i * dim ..][0..dim]) |*value, sum| value.* = @floatCast(sum / @as(f64, @floatFromInt(load)));
            }
            measure(rows, norms2, dim);
        }
        return self;
    }

    /// Copies of these.
    pub fn of(alloc: std.mem.Allocator, dim: u32, given: []const f32) std.mem.Allocator.Error!Centers {
        const rows = try alloc.dupe(f32, given);
        errdefer alloc.free(rows);
        const norms2 = try alloc.alloc(f32, given.len / dim);
        measure(rows, norms2, dim);
        return .{ .dim = dim, .rows = rows, .norms2 = norms2 };
    }

    /// The squared distances of rows to the centers that are nearest to each, summed.
    pub fn spread(self: *const Centers, rows: []const f32) f64 {
        var sum: f64 = 0;
        for (0..rows.len / self.dim) |i| {
            const row = rows[i * self.dim ..][0..self.dim];
            for (row, self.at(self.nearest(row))) |x, c| sum += (@as(f64, x) - c) * (@as(f64, x) - c);
        }
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

test "there are as many centers as vectors can pay for" {
    for ([_]u64{ 1, 5, 255, 256, 1000, 1 << 16, 1 << 30 }) |n| {
        const count = Centers.count_for(n);
        try std.testing.expect(count >= 1 and count <= base.limits.centers_max and count <= @max(1, n / 256));
        for ([_]u32{ 16, 128, 8192 }) |dim| {
            const sample = Centers.sample_for(n, dim);
            try std.testing.expect(sample >= count and sample <= n);
        }
    }
}
