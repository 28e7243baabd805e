//! The nearest rows of the delta, by looking at all of them: distances from the vectors as they were given.
//!
//! Kernels measure in float32 with a bound on the error. Candidates within that bound are measured again in float64
//! (docs/FORMAT.md, "Distances from it"): few rows, unless all are far from the origin and close together.
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

pub const Hit = extern struct {
    distance: f32,
    row: u32,

    pub fn farther(a: Hit, b: Hit) bool {
        return a.distance > b.distance or (a.distance == b.distance and a.row > b.row);
    }
};

/// The k nearest so far, the farthest of them first.
pub const Nearest = struct {
    hits: []Hit,
    count: usize = 0,

    /// No row: it takes the place of one that is not to be farther.
    const none = std.math.maxInt(u32);

    /// Those that lie within a distance.
    pub fn within(hits: []Hit, distance: f32) Nearest {
        if (distance == std.math.inf(f32)) return .{ .hits = hits };
        @memset(hits, .{ .distance = distance, .row = none });
        return .{ .hits = hits, .count = hits.len };
    }

    pub inline fn is_full(self: *const Nearest) bool {
        return self.count == self.hits.len;
    }

    pub inline fn farthest(self: *const Nearest) Hit {
        return self.hits[0];
    }

    /// The nearest first; nothing can be offered any more.
    pub fn sorted(self: *Nearest) []Hit {
        std.mem.sort(Hit, self.hits[0..self.count], {}, struct {
            fn less(_: void, a: Hit, b: Hit) bool {
                return b.farther(a);
            }
        }.less);
        while (self.count > 0 and self.hits[self.count - 1].row == none) self.count -= 1;
        return self.hits[0..self.count];
    }

    pub fn offer(self: *Nearest, hit: Hit) void {
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

/// The origin of distances.
pub const Point = struct {
    values: []const f32,
    norm2: f64,
    norm: f32,

    pub fn of(metric: Metric, values: []const f32) Point {
        if (metric == .l2) return .{ .values = values, .norm2 = 0, .norm = 0 };
        const norm2 = quant.exact.sum_squares(values);
        return .{ .values = values, .norm2 = norm2, .norm = @floatCast(@sqrt(norm2)) };
    }
};

/// Distances of a shape, from vectors as they were given.
pub const Measure = struct {
    shape: Shape,
    element: quant.Element,
    kind: quant.RowSum,
    /// Float32 sums are wrong by less than this share of the sum of their terms' magnitudes.
    slack: f32,
    kernels: *const quant.Kernels,

    pub fn of(shape: Shape) Measure {
        return .{
            .shape = shape,
            .element = switch (shape.dtype) {
                .f32 => .f32,
                .f16 => .f16,
                .u8 => .u8,
                .i8 => .i8,
            },
            .kind = switch (shape.metric) {
                .l2 => .difference2,
                .ip, .cosine => .product_and_norm2,
            },
            // A lane of the kernels adds len / 64 terms, then the lanes one another; each term was rounded before.
            .slack = (@as(f32, @floatFromInt(shape.dim)) / 64 + 16) * std.math.floatEps(f32),
            .kernels = quant.kernels(),
        };
    }

    pub inline fn distance(self: *const Measure, query: Point, vector: [*]const u8) f32 {
        const found = self.sums_of(query, vector);
        return distance_of(self.shape.metric, found.sum, found.norm2, query.norm);
    }

    inline fn sums_of(self: *const Measure, query: Point, vector: [*]const u8) struct { sum: f32, norm2: f32 } {
        var sum: f32 = undefined;
        var norm2: f32 = 0;
        self.kernels.row_sums(query.values.ptr, self.shape.dim, self.element, self.kind, vector, 1, @ptrCast(&sum), @ptrCast(&norm2));
        return .{ .sum = sum, .norm2 = norm2 };
    }

    /// A lower bound of the distance, whatever float32 lost.
    pub fn at_least(self: *const Measure, query: Point, vector: [*]const u8) f32 {
        const found = self.sums_of(query, vector);
        return self.least(found.sum, found.norm2, query.norm);
    }

    /// The distance in float64, which `distance` tells about.
    pub fn exact(self: *const Measure, query: Point, vector: [*]const u8) f32 {
        return @floatCast(quant.exact.distance(self.shape.metric, self.shape.dtype, query.values, query.norm2, vector[0..self.shape.row_bytes()]));
    }

    /// Offers those of `count` vectors, one after the other and `block_rows` at most, that may be among the nearest. Their sums
    /// of squares are known, or written for the next query.
    pub fn offer(self: *const Measure, query: Point, vectors: [*]const u8, count: usize, first: u32, norms2: []f32, norms_known: bool, nearest: *Nearest) void {
        var sums: [block_rows]f32 = undefined;
        const kind = if (norms_known and self.kind == .product_and_norm2) .product else self.kind;
        self.kernels.row_sums(query.values.ptr, self.shape.dim, self.element, kind, vectors, @intCast(count), &sums, norms2.ptr);
        const size = self.shape.row_bytes();
        var i: usize = 0;
        while (i < count) : (i += 1) {
            if (self.kind == .difference2 and nearest.is_full()) {
                // Most are farther, several at a time.
                const Several = @Vector(16, f32);
                const farthest = nearest.farthest().distance;
                while (i + 16 <= count) : (i += 16) {
                    const some: Several = sums[i..][0..16].*;
                    const least_of: Several = some * @as(Several, @splat(1 - self.slack));
                    if (@reduce(.Or, least_of <= @as(Several, @splat(@max(farthest, lost))))) break;
                }
                if (i == count) break;
            }
            const sum = sums[i];
            if (nearest.is_full() and self.least(sum, if (self.kind == .difference2) 0 else norms2[i], query.norm) > nearest.farthest().distance) continue;
            nearest.offer(.{ .distance = self.exact(query, vectors + i * size), .row = first + @as(u32, @intCast(i)) });
        }
    }

    /// A lower bound of the distance. Sums so small that float32 may have lost terms of them say nothing.
    inline fn least(self: *const Measure, sum: f32, norm2: f32, query_norm: f32) f32 {
        const both = @sqrt(norm2) * query_norm;
        return switch (self.shape.metric) {
            .l2 => if (sum > lost) sum * (1 - self.slack) else 0,
            .ip => if (both > lost) -sum - 2 * self.slack * both else -std.math.inf(f32),
            .cosine => if (both > lost) 1 - sum / both - 4 * self.slack else -std.math.inf(f32),
        };
    }
};

const lost = 1e-30;

/// A query, and where its scan begins.
pub const Asked = struct {
    point: Point,
    passing: BitSet,
    from: u32,
    nearest: Nearest,
};

/// Looks at the rows of a view that pass, `rows_end` in all, for all queries together. Returns nothing: the nearest are offered to each.
pub fn scan(shape: Shape, records: anytype, rows_end: u32, asked: []Asked) void {
    const measure: Measure = .of(shape);
    var from: u32 = rows_end;
    for (asked) |*one| from = @min(from, one.from);
    // From the last record back, since most records may hold a single row that the scan skips.
    var at = records.len;
    var first = rows_end;
    while (first > from) {
        at -= 1;
        first -= records[at].rows.count;
    }
    for (records[at..]) |record| {
        scan_rows(&measure, record.rows.vectors, first, record.rows.count, asked);
        first += record.rows.count;
    }
}

/// Rows of one record, from number `first` on. Those that pass one after another are measured together.
fn scan_rows(measure: *const Measure, vectors: []const u8, first: u32, count: u32, asked: []Asked) void {
    const size = measure.shape.row_bytes();
    var norms2: [block_rows]f32 = undefined;
    var block: u32 = 0;
    while (block < count) : (block += block_rows) {
        const end = @min(count, block + block_rows);
        var norms_known = false; // of all rows of the block
        for (asked) |*one| {
            if (first + end <= one.from) continue;
            var at = @max(block, one.from -| first);
            while (at < end) {
                const start = one.passing.next(first + at, true) - first;
                if (start >= end) break;
                at = @min(end, one.passing.next(first + start, false) - first);
                measure.offer(one.point, vectors[start * size ..].ptr, at - start, @intCast(first + start), norms2[start - block ..], norms_known, &one.nearest);
                norms_known = norms_known or at - start == end - block;
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
            if (!(both > 0)) return if (norm2 == query_norm) 0 else 0.5;
            return @max(0, 1 - sum / both);
        },
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
        var alive = try BitSet.init(allocator, count);
        defer alive.deinit(allocator);
        var even = try BitSet.init(allocator, count);
        defer even.deinit(allocator);
        for (0..count) |row| {
            if (row % 5 != 0) alive.insert(row);
            if (row % 5 != 0 and row % 2 == 0) even.insert(row);
        }
        const shape: Shape = .{ .dim = dim, .metric = metric, .dtype = Dtype.of(@typeName(T)).? };
        var hits: [2 * 10]Hit = undefined;
        var asked: [2]Asked = undefined;
        for (&asked, [2]BitSet{ even, alive }, 0..) |*one, set, q| one.* = .{
            .point = .of(metric, queries[q * dim ..][0..dim]),
            .passing = set,
            .from = 0,
            .nearest = .{ .hits = hits[q * 10 ..][0..10] },
        };
        scan(shape, &[_]*Record{&record}, count, &asked);
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
                    .cosine => if (both > 0) 1 - sum / both else @as(f64, if (norm == query_norm) 0 else 0.5),
                };
                expected[found] = .{ .distance = @floatCast(exact), .row = @intCast(row) };
                found += 1;
            }
            std.mem.sort(Hit, expected[0..found], {}, struct {
                fn less(_: void, a: Hit, b: Hit) bool {
                    return b.farther(a);
                }
            }.less);
            const got = asked[q].nearest.sorted();
            try std.testing.expectEqual(10, got.len);
            for (expected[0..10], got) |wanted, hit|
                try std.testing.expectApproxEqAbs(wanted.distance, hit.distance, 1e-5 * @max(1, @abs(wanted.distance)));
        }
    };
}

test "cosine knows zero vectors, and rows that lie close together far from the origin" {
    const dim = 24;
    const count = 500;
    var prng = base.Prng.init(4);
    var vectors: [count][dim]f32 = undefined;
    for (&vectors) |*vector| for (vector) |*x| {
        x.* = 1000 + prng.gaussian();
    };
    @memset(&vectors[7], 0);
    var queries: [20][dim]f32 = undefined;
    for (&queries) |*query| for (query) |*x| {
        x.* = 1000 + prng.gaussian();
    };
    @memset(&queries[0], 0);
    const Record = struct { rows: struct { vectors: []const u8, count: u32 } };
    var record: Record = .{ .rows = .{ .vectors = std.mem.sliceAsBytes(&vectors), .count = count } };
    var all = try BitSet.init(std.testing.allocator, count);
    defer all.deinit(std.testing.allocator);
    for (0..count) |row| all.insert(row);
    for ([_]Metric{ .l2, .ip, .cosine }) |metric| for (&queries) |*query| {
        var hits: [10]Hit = undefined;
        var asked = [1]Asked{.{ .point = .of(metric, query), .passing = all, .from = 0, .nearest = .{ .hits = &hits } }};
        scan(.{ .dim = dim, .metric = metric, .dtype = .f32 }, &[_]*Record{&record}, count, &asked);
        var expected: [count]Hit = undefined;
        for (&expected, &vectors, 0..) |*hit, *vector, row| {
            const distance = quant.exact.distance(metric, Dtype.f32, query, quant.exact.sum_squares(query), std.mem.sliceAsBytes(vector));
            hit.* = .{ .distance = @floatCast(distance), .row = @intCast(row) };
        }
        var all_nearest: Nearest = .{ .hits = &expected, .count = count };
        try std.testing.expectEqualSlices(Hit, all_nearest.sorted()[0..10], asked[0].nearest.sorted());
    };
}
