//! The nearest rows of the delta, by looking at all of them: distances from the vectors as they were given.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const BitSet = base.BitSet;

pub const Dtype = enum(u8) {
    f32,
    f16,
    u8,
    i8,

    pub fn of(name: []const u8) ?Dtype {
        return std.meta.stringToEnum(Dtype, name);
    }

    pub fn bytes(self: Dtype) usize {
        return switch (self) {
            .f32 => 4,
            .f16 => 2,
            .u8, .i8 => 1,
        };
    }
};

pub const Metric = enum { l2, ip, cosine };

pub const Shape = struct {
    dim: u32,
    metric: Metric,
    dtype: Dtype,

    pub fn row_bytes(self: Shape) usize {
        return @as(usize, self.dim) * self.dtype.bytes();
    }
};

/// Rows that stay in the nearest cache while all queries look at them.
const block_rows = 128;

pub const Hit = struct {
    distance: f32,
    row: u32,

    fn farther(a: Hit, b: Hit) bool {
        return a.distance > b.distance or (a.distance == b.distance and a.row > b.row);
    }
};

/// The k nearest so far, the farthest of them first.
const Nearest = struct {
    hits: []Hit,
    count: usize = 0,

    fn offer(self: *Nearest, hit: Hit) void {
        if (self.count < self.hits.len) {
            var at = self.count;
            self.count += 1;
            while (at > 0 and hit.farther(self.hits[(at - 1) / 2])) {
                self.hits[at] = self.hits[(at - 1) / 2];
                at = (at - 1) / 2;
            }
            self.hits[at] = hit;
            return;
        }
        if (self.count == 0 or !self.hits[0].farther(hit)) return;
        var at: usize = 0;
        while (true) {
            var child = 2 * at + 1;
            if (child >= self.count) break;
            if (child + 1 < self.count and self.hits[child + 1].farther(self.hits[child])) child += 1;
            if (!self.hits[child].farther(hit)) break;
            self.hits[at] = self.hits[child];
            at = child;
        }
        self.hits[at] = hit;
    }
};

/// Rows of one record, from number `first` on. Those that pass one after another are measured together.
fn scan_rows(shape: Shape, vectors: []const u8, first: u32, queries: []const f32, norms: []const f32, passing: []const ?BitSet, nearest: []Nearest) void {
    const kernels = quant.kernels();
    const element: quant.Element = switch (shape.dtype) {
        .f32 => .f32,
        .f16 => .f16,
        .u8 => .u8,
        .i8 => .i8,
    };
    const kind: quant.RowSum = switch (shape.metric) {
        .l2 => .difference2,
        .ip => .product,
        .cosine => .product_and_norm2,
    };
    const count = vectors.len / shape.row_bytes();
    var sums: [block_rows]f32 = undefined;
    var norms2: [block_rows]f32 = undefined;
    var block: usize = 0;
    while (block < count) : (block += block_rows) {
        const end = @min(count, block + block_rows);
        for (nearest, 0..) |*best, i| {
            const set = passing[if (passing.len == 1) 0 else i].?;
            const query = queries[i * shape.dim ..][0..shape.dim];
            var at = block;
            while (at < end) {
                if (!set.contains(first + @as(u32, @intCast(at)))) {
                    at += 1;
                    continue;
                }
                const start = at;
                while (at < end and set.contains(first + @as(u32, @intCast(at)))) at += 1;
                kernels.row_sums(query.ptr, shape.dim, element, kind, vectors[start * shape.row_bytes() ..].ptr, @intCast(at - start), &sums, &norms2);
                for (start..at, 0..) |row, j| {
                    const distance = distance_of(shape.metric, sums[j], if (shape.metric == .cosine) norms2[j] else 0, norms[i]);
                    best.offer(.{ .distance = distance, .row = first + @as(u32, @intCast(row)) });
                }
            }
        }
    }
}

fn distance_of(metric: Metric, sum: f32, norm2: f32, query_norm: f32) f32 {
    switch (metric) {
        .l2 => return sum,
        .ip => return -sum,
        .cosine => {
            const both = @sqrt(norm2) * query_norm;
            // No vector of the length 0 has a direction: it lies across from all others.
            return if (both > 0) @max(0, 1 - sum / both) else 1;
        },
    }
}

/// `passing`: none, one set for all queries, or one each (null: all rows that live). Writes k hits a query, nearest first;
/// `counts` says how many there are.
pub fn search(allocator: std.mem.Allocator, view: anytype, queries: []const f32, k: usize, passing: []const ?BitSet, hits: []Hit, counts: []u32) error{OutOfMemory}!void {
    const shape = view.shape;
    const alive = try allocator.alloc(?BitSet, @max(1, passing.len));
    defer allocator.free(alive);
    var made: usize = 0;
    defer for (alive[0..made]) |*set| set.*.?.deinit(allocator);
    for (alive, 0..) |*set, i| {
        set.* = try BitSet.init(allocator, view.rows);
        made += 1;
        const given = if (passing.len == 0) null else passing[i];
        for (set.*.?.words, view.dead.words, 0..) |*word, dead, w| word.* = ~dead & if (given) |one_set| one_set.words[w] else ~@as(u64, 0);
        const rest: u6 = @intCast(view.rows % 64);
        if (rest != 0) set.*.?.words[set.*.?.words.len - 1] &= (@as(u64, 1) << rest) - 1;
    }
    const nearest = try allocator.alloc(Nearest, counts.len);
    defer allocator.free(nearest);
    const norms = try allocator.alloc(f32, counts.len);
    defer allocator.free(norms);
    for (nearest, norms, 0..) |*best, *norm, i| {
        best.* = .{ .hits = hits[i * k ..][0..k] };
        var sum: f64 = 0;
        for (queries[i * shape.dim ..][0..shape.dim]) |x| sum += @as(f64, x) * x;
        norm.* = @floatCast(@sqrt(sum));
    }
    var first: u32 = 0;
    for (view.records) |record| {
        scan_rows(shape, record.rows.vectors, first, queries, norms, alive, nearest);
        first += record.rows.count;
    }
    for (nearest, counts) |*best, *count| {
        count.* = @intCast(best.count);
        std.mem.sort(Hit, best.hits[0..best.count], {}, struct {
            fn less(_: void, a: Hit, b: Hit) bool {
                return b.farther(a);
            }
        }.less);
    }
}

test "the nearest of a scan are those of plain arithmetic, for every type and metric" {
    const allocator = std.testing.allocator;
    const count = 300;
    inline for (.{ f32, f16, u8, i8 }) |T| inline for (.{ Metric.l2, Metric.ip, Metric.cosine }) |metric| for ([_]u32{ 1, 7, 16, 37 }) |dim| {
        var prng = base.Prng.init(dim);
        const vectors = try allocator.alloc(T, count * dim);
        defer allocator.free(vectors);
        for (vectors) |*value| {
            const raw: u8 = @intCast(prng.below(100));
            value.* = if (@typeInfo(T) == .float) @floatFromInt(raw) else @intCast(raw);
        }
        const queries = try allocator.alloc(f32, 2 * dim);
        defer allocator.free(queries);
        for (queries) |*value| value.* = @floatFromInt(@as(i32, @intCast(prng.below(100))) - 30);
        const Record = struct { rows: struct { vectors: []const u8, count: u32 } };
        var record: Record = .{ .rows = .{ .vectors = std.mem.sliceAsBytes(vectors), .count = count } };
        var dead = try BitSet.init(allocator, count);
        defer dead.deinit(allocator);
        var even = try BitSet.init(allocator, count);
        defer even.deinit(allocator);
        for (0..count) |row| {
            if (row % 5 == 0) dead.insert(row);
            if (row % 2 == 0) even.insert(row);
        }
        const view = .{ .shape = Shape{ .dim = dim, .metric = metric, .dtype = Dtype.of(@typeName(T)).? }, .rows = @as(u32, count), .dead = dead, .records = &[_]*Record{&record} };
        var hits: [2 * 10]Hit = undefined;
        var counts: [2]u32 = undefined;
        try search(allocator, view, queries, 10, &.{ even, null }, &hits, &counts);
        for (0..2) |q| {
            var expected: [count]Hit = undefined;
            var found: usize = 0;
            for (0..count) |row| {
                if (row % 5 == 0 or (q == 0 and row % 2 == 1)) continue;
                var sum: f64 = 0;
                var norm: f64 = 0;
                var query_norm: f64 = 0;
                for (0..dim) |i| {
                    const given = vectors[row * dim + i];
                    const x: f64 = if (@typeInfo(T) == .float) given else @floatFromInt(given);
                    const y: f64 = queries[q * dim + i];
                    sum += if (metric == .l2) (x - y) * (x - y) else x * y;
                    norm += x * x;
                    query_norm += y * y;
                }
                const both = @sqrt(norm) * @sqrt(query_norm);
                const exact = switch (metric) {
                    .l2 => sum,
                    .ip => -sum,
                    .cosine => if (both > 0) 1 - sum / both else 1,
                };
                expected[found] = .{ .distance = @floatCast(exact), .row = @intCast(row) };
                found += 1;
            }
            std.mem.sort(Hit, expected[0..found], {}, struct {
                fn less(_: void, a: Hit, b: Hit) bool {
                    return b.farther(a);
                }
            }.less);
            try std.testing.expectEqual(10, counts[q]);
            for (expected[0..10], hits[q * 10 ..][0..10]) |wanted, hit|
                try std.testing.expectApproxEqAbs(wanted.distance, hit.distance, 1e-5 * @max(1, @abs(wanted.distance)));
        }
    };
}
