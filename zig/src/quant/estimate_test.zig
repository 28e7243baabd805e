//! The estimators against true distances: exact where the mathematics is exact, and inside their error bars as often
//! as promised where it is not.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const encode = @import("encode.zig");
const Centers = @import("centers.zig").Centers;
const Rotation = @import("rotation.zig").Rotation;
const Query = @import("query.zig").Query;
const BuildCodes = @import("build_codes.zig").BuildCodes;
const quant_decode = @import("encode.zig").decode;
const alloc = testing.allocator;

/// A few vectors, their codes as an index holds them, and the codes unpacked.
const Sample = struct {
    params: encode.CodeParams,
    n: u32,
    rows: []const f32,
    centers: Centers,
    center_ids: []u8,
    factors: []encode.Factors,
    code: []u16,
    memory: base.AlignedBytes,
    pairs: []u32,
    lower: []u8,
    offsets: []f32,
    ratios: []u16,
    codes: encode.Codes,

    /// Number of centers; 0 is the origin alone.
    fn init(params: encode.CodeParams, rows: []const f32, center_count: u32) !Sample {
        return init_form(params, rows, center_count, .distance);
    }

    fn init_form(params: encode.CodeParams, rows: []const f32, center_count: u32, form: encode.Form) !Sample {
        const dim = params.dim;
        const n: u32 = @intCast(rows.len / dim);
        var encoder = try encode.Encoder.init(alloc, params);
        defer encoder.deinit(alloc);
        const factors = try alloc.alloc(encode.Factors, n);
        const code = try alloc.alloc(u16, rows.len);
        const origin = try alloc.alloc(f32, dim);
        defer alloc.free(origin);
        @memset(origin, 0);
        const centers = try Centers.train(alloc, dim, if (center_count == 0) origin else rows, @max(1, center_count));
        const center_ids = try alloc.alloc(u8, n);
        const rest = try alloc.alloc(f32, dim);
        defer alloc.free(rest);
        var high = encode.Factors.zero;
        const stored = try alloc.alloc(encode.StoredFactors, n);
        defer alloc.free(stored);
        var norm2: f64 = 0;
        var f2: f64 = 0;
        for (factors, center_ids, stored, 0..) |*f, *center, *both, i| {
            const row = rows[i * dim ..][0..dim];
            center.* = centers.nearest(row);
            for (rest, row, centers.at(center.*)) |*x, o, c| x.* = o - c;
            f.* = encoder.encode(rest, code[i * dim ..][0..dim]);
            both.* = encoder.store_factors(form, code[i * dim ..][0..dim], f.*, centers.at(center.*), centers.norms2[center.*]);
            norm2 += f.norm2;
            f2 += @as(f64, f.f_upper) * f.f_upper;
            high.tan2_full += f.tan2_full / @as(f32, @floatFromInt(n));
            high.tan2_upper += f.tan2_upper / @as(f32, @floatFromInt(n));
        }
        var self = Sample{
            .params = params,
            .n = n,
            .rows = rows,
            .centers = centers,
            .center_ids = center_ids,
            .factors = factors,
            .code = code,
            .memory = try .alloc(encode.Codes.byte_len(params, n), .{}),
            .pairs = try alloc.alloc(u32, n),
            .lower = try alloc.alloc(u8, n * params.lower_bytes() + base.limits.code_padding),
            .offsets = try alloc.alloc(f32, n),
            .ratios = try alloc.alloc(u16, n),
            .codes = undefined,
        };
        self.codes = .{
            .params = params,
            .n = n,
            .bytes = self.memory.bytes,
            .factors = self.pairs,
            .center_ids = center_ids,
            .centers = centers.rows,
            .form = form,
            .norm2_per_f2 = if (f2 > 0) @floatCast(norm2 / f2) else 0,
            .tan_upper = @sqrt(high.tan2_upper),
            .tan_full = @sqrt(high.tan2_full),
        };
        for (stored, 0..) |both, i| {
            const u = code[i * dim ..][0..dim];
            encode.pack(u, @intCast(params.record_bits), params.memory_bits, self.memory.bytes[i * params.upper_bytes() ..]);
            self.pairs[i] = both.memory;
            encode.pack(u, 0, params.record_bits, self.lower[i * params.lower_bytes() ..]);
            self.offsets[i] = both.record.offset;
            self.ratios[i] = both.record.ratio;
        }
        return self;
    }

    fn deinit(self: *Sample) void {
        self.centers.deinit(alloc);
        alloc.free(self.center_ids);
        alloc.free(self.factors);
        alloc.free(self.code);
        self.memory.free();
        alloc.free(self.pairs);
        alloc.free(self.lower);
        alloc.free(self.offsets);
        alloc.free(self.ratios);
    }

    /// The estimate as docs/rabitq.md writes it, in double precision, with the factors as stored.
    fn definition(self: *const Sample, query: []const f32, i: u32, full: bool) f64 {
        const dim = self.params.dim;
        const shift: u4 = @intCast(if (full) 0 else self.params.record_bits);
        const center: f64 = if (full) self.params.center_full() else self.params.center_upper();
        var inner: f64 = 0;
        for (query, self.code[i * dim ..][0..dim]) |q, u| inner += q * (@as(f64, @floatFromInt(u >> shift)) - center);
        const f: f64 = if (full) encode.RecordFactors.f_full(self.ratios[i], self.codes.f_upper_of(i), self.params.record_bits) else self.codes.f_upper_of(i);
        const offset: f64 = if (full) self.offsets[i] else self.codes.offset_of(i);
        return offset + self.terms(query, i) - 2 * f * inner;
    }

    fn terms(self: *const Sample, query: []const f32, i: u32) f64 {
        var toward: f64 = 0;
        for (query, self.centers.at(self.center_ids[i])) |q, c| toward += @as(f64, q) * c;
        return (if (self.codes.form == .distance) squares(query) else 0) - 2 * toward;
    }
};

fn squares(x: []const f32) f64 {
    return distance2(x, null);
}

fn distance2(a: []const f32, b: ?[]const f32) f64 {
    var sum: f64 = 0;
    for (a, 0..) |x, i| {
        const d = @as(f64, x) - (if (b) |y| y[i] else 0);
        sum += d * d;
    }
    return sum;
}

/// Correlated, uneven data: each row is a center plus noise whose scale falls with the dimension.
fn fill(prng: *base.Prng, rows: []f32, dim: usize) void {
    for (rows, 0..) |*x, i| {
        const j = i % dim;
        const spread = 1 / (1 + 0.1 * @as(f32, @floatFromInt(j)));
        const center: f32 = if (i / dim % 3 == 0) 0.4 else -0.2;
        x.* = 30 * spread * (prng.gaussian() + center);
    }
}

const splits = [_][2]u8{ .{ 1, 0 }, .{ 2, 0 }, .{ 3, 0 }, .{ 4, 0 }, .{ 5, 0 }, .{ 6, 0 }, .{ 7, 0 }, .{ 8, 0 }, .{ 1, 7 }, .{ 2, 6 }, .{ 3, 5 }, .{ 4, 4 }, .{ 5, 3 }, .{ 6, 2 }, .{ 7, 1 }, .{ 8, 8 }, .{ 4, 1 } };

test "estimates equal their definition: both halves of the code, pages, single records" {
    var prng = base.Prng.init(testing.random_seed);
    errdefer std.debug.print("seed {}\n", .{testing.random_seed});
    for ([_]u32{ 16, 80, 128, 400 }) |dim| for (splits) |split| {
        errdefer std.debug.print("dim {}, bits {any}\n", .{ dim, split });
        const n = 70;
        const rows = try alloc.alloc(f32, n * dim);
        defer alloc.free(rows);
        fill(&prng, rows, dim);
        var sample = try Sample.init(.{ .dim = dim, .memory_bits = split[0], .record_bits = split[1] }, rows, 5);
        defer sample.deinit();
        const q = try alloc.alloc(f32, dim);
        defer alloc.free(q);
        fill(&prng, q, dim);
        var query = try Query.init(alloc, sample.params);
        defer query.deinit(alloc);
        query.bind(&sample.codes);
        query.prepare(q);

        var page: [n]f32 = undefined;
        query.estimate_page(sample.codes.uppers(0, n), n, sample.lower.ptr, sample.offsets, sample.ratios, &page);
        var part: [7]f32 = undefined;
        query.estimate_page(sample.codes.uppers(60, 7), 7, sample.lower.ptr + 60 * sample.params.lower_bytes(), sample.offsets[60..67], sample.ratios[60..67], &part);
        try testing.expectEqualSlices(f32, page[60..67], &part);

        var ids: [600]u32 = undefined;
        for (&ids) |*id| id.* = @intCast(prng.below(n));
        var near: [600]f32 = undefined;
        query.estimate(&sample.codes, &ids, &near);
        var lower: [600][*]const u8 = undefined;
        var factors: [600]encode.RecordFactors = undefined;
        for (ids, &lower, &factors) |id, *l, *f| {
            l.* = sample.lower.ptr + id * sample.params.lower_bytes();
            f.* = .{ .offset = sample.offsets[id], .ratio = sample.ratios[id] };
        }
        var records: [600]f32 = undefined;
        query.estimate_records(&sample.codes, &ids, &lower, &factors, &records);

        const coarse = try alloc.alloc(f32, dim); // the query as navigation sees it
        defer alloc.free(coarse);
        for (coarse, query.coarse[0..dim]) |*x, c| x.* = query.coarse_step * @as(f32, @floatFromInt(c));
        for (ids, near, records) |id, estimate, record| {
            const norm2: f64 = sample.factors[id].norm2;
            const scale = squares(rows[id * dim ..][0..dim]) + squares(q);
            // Only the code meets the rounded query.
            const upper = sample.definition(coarse, id, false) - sample.terms(coarse, id) + sample.terms(q, id);
            try testing.expectApproxEqAbs(upper, estimate, 1e-5 * scale);
            // 16 bits of the query: at most half a step a dimension.
            const step_error = 2 * @sqrt(norm2) * query.fine_step * @sqrt(@as(f64, @floatFromInt(dim)));
            try testing.expectApproxEqAbs(sample.definition(q, id, true), page[id], 1e-5 * scale + step_error);
            try testing.expectEqual(page[id], record);
        }
    };
}

test "over many rotations estimates are unbiased, and inside their error bars as often as promised" {
    const dim_in = 120;
    const n = 24;
    const seeds = 60;
    var prng = base.Prng.init(17);
    var raw: [(n + 1) * dim_in]f32 = undefined;
    fill(&prng, &raw, dim_in);
    for (raw[dim_in .. 2 * dim_in], raw[0..dim_in]) |*x, q| x.* = q + 0.2 * prng.gaussian(); // row 0 is near the query
    const dim = 128;
    var rotated: [(n + 1) * dim]f32 = undefined;
    for (splits) |split| {
        errdefer std.debug.print("bits {any}\n", .{split});
        var upper = Errors{};
        var full = Errors{};
        for (0..seeds) |seed| {
            var rotation = try Rotation.init(alloc, dim_in, 1000 + seed);
            defer rotation.deinit(alloc);
            for (0..n + 1) |i| rotation.apply(raw[i * dim_in ..][0..dim_in], rotated[i * dim ..][0..dim]);
            var sample = try Sample.init(.{ .dim = dim, .memory_bits = split[0], .record_bits = split[1] }, rotated[dim..], 3);
            defer sample.deinit();
            var query = try Query.init(alloc, sample.params);
            defer query.deinit(alloc);
            query.bind(&sample.codes);
            query.prepare(rotated[0..dim]);
            var ids: [n]u32 = undefined;
            for (&ids, 0..) |*id, i| id.* = @intCast(i);
            var near: [n]f32 = undefined;
            query.estimate(&sample.codes, &ids, &near);
            var page: [n]f32 = undefined;
            query.estimate_page(sample.codes.uppers(0, n), n, sample.lower.ptr, sample.offsets, sample.ratios, &page);
            for (0..n) |i| {
                const truth: f32 = @floatCast(distance2(raw[0..dim_in], raw[(i + 1) * dim_in ..][0..dim_in]));
                const norm2 = sample.factors[i].norm2;
                // F rounded to 16 bits errs with the way from the center; only 7 bits and more can see it.
                const rounding: f32 = if (split[0] < 7) 0 else 2e-3 * norm2;
                upper.add((near[i] - truth) / (query.sigma_upper(&sample.codes, @intCast(i), truth) + rounding));
                // 16-bit factors and query add their own rounding, which only codes of 10 bits and more can see.
                const floor = 3e-5 * @as(f32, @floatCast(squares(raw[(i + 1) * dim_in ..][0..dim_in])));
                full.add((page[i] - truth) / (query.sigma_full(norm2, truth) + floor));
            }
        }
        try upper.check(split[0] < 7);
        try full.check(split[0] + split[1] < 8);
    }
}

/// Errors in units of their σ.
const Errors = struct {
    count: f64 = 0,
    sum: f64 = 0,
    sum2: f64 = 0,
    inside2: f64 = 0,
    inside4: f64 = 0,

    fn add(self: *Errors, z: f32) void {
        self.count += 1;
        self.sum += z;
        self.sum2 += @as(f64, z) * z;
        if (@abs(z) <= 2 * 1.2) self.inside2 += 1;
        if (@abs(z) <= 4 * 1.2) self.inside4 += 1;
    }

    fn check(self: *const Errors, tight: bool) !void {
        errdefer std.debug.print("{} errors: mean {d:.4}, deviation {d:.4}, inside 2 sigma {d:.4}, inside 4 {d:.4}\n", .{ self.count, self.sum / self.count, @sqrt(self.sum2 / self.count), self.inside2 / self.count, self.inside4 / self.count });
        // Errors of one rotation share a query, so they are not independent: as if a fourth of them were.
        try testing.expect(@abs(self.sum / self.count) < 4 * @sqrt(self.sum2 / self.count) / @sqrt(self.count / 4));
        try testing.expect(self.inside2 / self.count >= 0.95);
        try testing.expect(self.inside4 / self.count >= 0.998);
        // A bound that is far too wide would pass the lines above.
        if (tight) try testing.expect(@sqrt(self.sum2 / self.count) > 0.7 and @sqrt(self.sum2 / self.count) < 1.25);
    }
};

test "zero vectors and zero queries give exact distances and no NaN" {
    for (splits) |split| {
        const dim = 48;
        var rows: [3 * dim]f32 = @splat(0);
        @memset(rows[dim .. 2 * dim], 2);
        var sample = try Sample.init(.{ .dim = dim, .memory_bits = split[0], .record_bits = split[1] }, &rows, 0);
        defer sample.deinit();
        var query = try Query.init(alloc, sample.params);
        defer query.deinit(alloc);
        query.bind(&sample.codes);
        for ([_]f32{ 0, 3 }) |value| {
            const q: [dim]f32 = @splat(value);
            query.prepare(&q);
            var near: [3]f32 = undefined;
            query.estimate(&sample.codes, &.{ 0, 1, 2 }, &near);
            var page: [3]f32 = undefined;
            query.estimate_page(sample.codes.uppers(0, 3), 3, sample.lower.ptr, sample.offsets, sample.ratios, &page);
            for ([_]f32{ 0, 2, 0 }, near, page) |x, a, b| {
                const truth = dim * (x - value) * (x - value);
                try testing.expectApproxEqAbs(truth, a, 1e-3 * dim + 4e-3 * x * x * dim); // factors of 16 bits
                try testing.expectApproxEqAbs(truth, b, 1e-3 * dim);
            }
            try testing.expectEqual(0, query.sigma_upper(&sample.codes, 0, 1));
            try testing.expect(std.math.isFinite(query.sigma_full(0, 1)));
            try testing.expect(std.math.isFinite(query.sigma_upper(&sample.codes, 1, -1)));
            for (0..3) |i| try testing.expect(std.math.isFinite(sample.codes.norm2_of(@intCast(i))));
        }
    }
}

test "construction: code against code equals its definition, is near the truth, and zero for equal vectors" {
    for ([_]u32{ 16, 112, 128, 784 }) |dim| {
        errdefer std.debug.print("dim {}\n", .{dim});
        const n = 60;
        var prng = base.Prng.init(dim);
        const rows = try alloc.alloc(f32, n * dim);
        defer alloc.free(rows);
        for (rows) |*x| x.* = 20 * prng.gaussian();
        @memcpy(rows[3 * dim ..][0..dim], rows[7 * dim ..][0..dim]);
        @memset(rows[9 * dim ..][0..dim], 0);
        var codes = try BuildCodes.init(n, dim);
        defer codes.deinit();
        var encoder = try encode.Encoder.init(alloc, BuildCodes.params_of(dim));
        defer encoder.deinit(alloc);
        const scratch = try alloc.alloc(u16, dim);
        defer alloc.free(scratch);
        for (0..n) |i| codes.set(@intCast(i), &encoder, rows[i * dim ..][0..dim], scratch);

        var plane = try BuildCodes.Plane.init(alloc, dim);
        defer plane.deinit(alloc);
        var ids: [n]u32 = undefined;
        for (&ids, 0..) |*id, i| id.* = @intCast(i);
        var out: [n]f32 = undefined;
        var again: [n]f32 = undefined;
        for (0..n) |from| {
            codes.distances(@intCast(from), &ids, &out);
            codes.prepare(@intCast(from), &plane);
            codes.distances_prepared(&plane, &ids, &again);
            try testing.expectEqualSlices(f32, &out, &again);
            try testing.expectEqual(out[n - 1], codes.distance(@intCast(from), n - 1));
            const a = codes.factors[from];
            for (0..n) |to| {
                const b = codes.factors[to];
                var inner: f64 = 0;
                for (codes.codes[from * dim ..][0..dim], codes.codes[to * dim ..][0..dim]) |u, v| {
                    inner += (@as(f64, @floatFromInt(u)) - 127.5) * (@as(f64, @floatFromInt(v)) - 127.5);
                }
                const expected = @max(0, a.norm2 + b.norm2 - 2.0 * a.f * b.f * inner);
                const scale = a.norm2 + b.norm2;
                try testing.expectApproxEqAbs(expected, out[to], 1e-5 * scale);
                const truth = distance2(rows[from * dim ..][0..dim], rows[to * dim ..][0..dim]);
                try testing.expectApproxEqAbs(truth, out[to], 0.03 * scale / @sqrt(@as(f32, @floatFromInt(dim)) / 16));
                // Symmetric up to rounding.
                try testing.expectApproxEqAbs(codes.distance(@intCast(to), @intCast(from)), out[to], 1e-6 * scale);
            }
        }
        try testing.expectEqual(0, codes.distance(3, 7));
        try testing.expectEqual(0, codes.distance(9, 9));
        try testing.expectEqual(codes.factors[5].norm2, codes.distance(9, 5));
    }
}

test "the scale search keeps both halves of a code good" {
    const dim = 128;
    const n = 300;
    var prng = base.Prng.init(23);
    const rows = try alloc.alloc(f32, n * dim);
    defer alloc.free(rows);
    for (rows) |*x| x.* = prng.gaussian();
    // Root mean square tan of uniform grids on 128 Gaussian coordinates, each vector with its own best scale, is
    // 0.753, 0.362, 0.190, 0.100, 0.051, 0.0255, 0.0128, 0.0064 for 1 to 8 bits.
    const best = [_]f32{ 0.753, 0.362, 0.190, 0.100, 0.051, 0.0255, 0.0128, 0.0064 };
    for (1..9) |bits| {
        var sample = try Sample.init(.{ .dim = dim, .memory_bits = @intCast(bits), .record_bits = 0 }, rows, 0);
        defer sample.deinit();
        errdefer std.debug.print("bits {}: tan {d:.4}\n", .{ bits, sample.codes.tan_upper });
        try testing.expectApproxEqRel(best[bits - 1], sample.codes.tan_upper, 0.05);
    }
    // Splitting an 8-bit code: how much worse each half may be than a code of its own.
    for ([_][3]f32{ .{ 2, 1.20, 2.2 }, .{ 3, 1.12, 1.3 }, .{ 4, 1.06, 1.1 }, .{ 5, 1.04, 1.05 }, .{ 6, 1.04, 1.05 } }) |limit| {
        const memory_bits: u8 = @intFromFloat(limit[0]);
        var sample = try Sample.init(.{ .dim = dim, .memory_bits = memory_bits, .record_bits = 8 - memory_bits }, rows, 0);
        defer sample.deinit();
        errdefer std.debug.print("upper bits {}: tan {d:.4}, whole {d:.4}\n", .{ memory_bits, sample.codes.tan_upper, sample.codes.tan_full });
        try testing.expect(sample.codes.tan_upper < limit[1] * best[memory_bits - 1]);
        try testing.expect(sample.codes.tan_full < limit[2] * best[7]);
    }
}

test "products are estimated without the rows' lengths in the way" {
    const dim = 64;
    const n = 200;
    var prng = base.Prng.init(testing.random_seed);
    errdefer std.debug.print("seed {}\n", .{testing.random_seed});
    const rows = try alloc.alloc(f32, n * dim);
    defer alloc.free(rows);
    for (0..n) |i| {
        const length = @exp(2 * prng.gaussian()); // e^-6 to e^6
        for (rows[i * dim ..][0..dim]) |*x| x.* = length * prng.gaussian();
    }
    var sample = try Sample.init_form(.{ .dim = dim, .memory_bits = 4, .record_bits = 6 }, rows, 4, .product);
    defer sample.deinit();
    var query = try Query.init(alloc, sample.params);
    defer query.deinit(alloc);
    query.bind(&sample.codes);
    var ids: [n]u32 = undefined;
    for (&ids, 0..) |*id, i| id.* = @intCast(i);
    var errors = Errors{};
    for (0..50) |_| {
        var q: [dim]f32 = undefined;
        for (&q) |*x| x.* = prng.gaussian();
        query.prepare(&q);
        var near: [n]f32 = undefined;
        query.estimate(&sample.codes, &ids, &near);
        var page: [n]f32 = undefined;
        query.estimate_page(sample.codes.uppers(0, n), n, sample.lower.ptr, sample.offsets, sample.ratios, &page);
        for (near, page, 0..) |upper, full, i| {
            var product: f64 = 0;
            for (q, rows[i * dim ..][0..dim]) |a, b| product += @as(f64, a) * b;
            const own = sample.factors[i].norm2;
            if (own > 0) errors.add(@floatCast((upper + 2 * product) / query.sigma_upper(&sample.codes, @intCast(i), 0)));
            // Sixteen bits of the query and float32 sums stand beside the code's own error.
            const rounding = 2e-4 * @sqrt(own * squares(&q)) + 1e-5 * (@abs(product) + @sqrt(squares(sample.centers.at(sample.center_ids[i])) * squares(&q)));
            // With the row's own tan: rows far shorter than their center have all nearly its code, which may be several
            // times as coarse as the mean of all codes that `sigma_full` takes.
            const sigma = 2 * @sqrt(own * squares(&q) * sample.factors[i].tan2_full / (dim - 1));
            try testing.expectApproxEqAbs(-2 * product, full, 6 * sigma + rounding);
        }
    }
    try errors.check(false);
}

test "a vector's own estimate is exact up to rounding, and no vector changes another's factors" {
    const dim = 64;
    const n = 60;
    var prng = base.Prng.init(testing.random_seed);
    errdefer std.debug.print("seed {}\n", .{testing.random_seed});
    const rows = try alloc.alloc(f32, (n + 1) * dim);
    defer alloc.free(rows);
    for (rows) |*x| x.* = prng.gaussian();
    for (rows[n * dim ..]) |*x| x.* *= 1e5;
    for (splits) |split| {
        errdefer std.debug.print("bits {any}\n", .{split});
        const params: encode.CodeParams = .{ .dim = dim, .memory_bits = split[0], .record_bits = split[1] };
        var alone = try Sample.init(params, rows[0 .. n * dim], 0);
        defer alone.deinit();
        var beside = try Sample.init(params, rows, 0);
        defer beside.deinit();
        try testing.expectEqualSlices(u32, alone.pairs, beside.pairs[0..n]);
        try testing.expectEqualSlices(f32, alone.offsets, beside.offsets[0..n]);
        try testing.expectEqualSlices(u16, alone.ratios, beside.ratios[0..n]);
        var query = try Query.init(alloc, params);
        defer query.deinit(alloc);
        query.bind(&beside.codes);
        for (0..n + 1) |i| {
            const row = rows[i * dim ..][0..dim];
            query.prepare(row);
            var own: [1]f32 = undefined;
            query.estimate_page(beside.codes.uppers(@intCast(i), 1), 1, beside.lower.ptr + i * params.lower_bytes(), beside.offsets[i..][0..1], beside.ratios[i..][0..1], &own);
            try testing.expectApproxEqAbs(0, own[0] / squares(row), 3e-4);
            query.estimate(&beside.codes, &.{@intCast(i)}, &own);
            try testing.expectApproxEqAbs(0, own[0] / squares(row), 2e-2);
        }
    }
}

test "a decoded vector is as far from its own as the error of its code, and encoded again it gets the same code" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for ([_]u32{ 16, 48, 128, 400 }) |dim| for ([_][2]u8{ .{ 1, 0 }, .{ 2, 0 }, .{ 4, 0 }, .{ 2, 6 }, .{ 4, 4 }, .{ 4, 6 }, .{ 8, 8 } }) |bits| for ([_]encode.Form{ .distance, .product }) |form| for ([_]u32{ 0, 3 }) |center_count| {
        errdefer std.debug.print("dim {d}, bits {any}, {t}, {d} centers\n", .{ dim, bits, form, center_count });
        const n = 24;
        const params: encode.CodeParams = .{ .dim = dim, .memory_bits = bits[0], .record_bits = bits[1] };
        const rows = try alloc.alloc(f32, n * dim);
        defer alloc.free(rows);
        for (rows, 0..) |*x, i| x.* = 9 * prng.gaussian() + @as(f32, @floatFromInt(i / dim % 3));
        @memset(rows[0..dim], 0);
        var sample = try Sample.init_form(params, rows, center_count, form);
        defer sample.deinit();
        var encoder = try encode.Encoder.init(alloc, params);
        defer encoder.deinit(alloc);
        const scratch = try alloc.alloc(u16, dim);
        defer alloc.free(scratch);
        const decoded = try alloc.alloc(f32, dim);
        defer alloc.free(decoded);
        for (0..n) |i| {
            const center = sample.centers.at(sample.center_ids[i]);
            const f = encode.RecordFactors.f_full(sample.ratios[i], sample.codes.f_upper_of(@intCast(i)), params.record_bits);
            const upper = sample.memory.bytes[i * params.upper_bytes() ..][0..params.upper_bytes()];
            const lower = sample.lower[i * params.lower_bytes() ..][0..params.lower_bytes()];
            quant_decode(params, upper, lower, f, center, scratch, decoded);
            const own = sample.code[i * dim ..][0..dim];
            for (decoded, own, center) |value, u, c| {
                const wanted = @as(f64, f) * (@as(f64, @floatFromInt(u)) - params.center_full()) + c;
                try testing.expectApproxEqAbs(wanted, value, 1e-5 * (@abs(wanted) + @abs(c)) + 1e-6);
            }
            // F·x̄ = o + e with |e| = |o|·tan; F comes back from its ratio within 4e-5.
            const row = rows[i * dim ..][0..dim];
            const error2 = @as(f64, sample.factors[i].norm2) * sample.factors[i].tan2_full;
            const slack = 1e-4 * @sqrt(@as(f64, sample.factors[i].norm2) * (1 + sample.factors[i].tan2_full)) + 1e-4;
            try testing.expect(@abs(@sqrt(distance2(row, decoded)) - @sqrt(error2)) <= slack);
            if (sample.factors[i].f_full == 0) continue;
            for (decoded, center) |*value, c| value.* -= c;
            const again = encoder.encode(decoded, scratch);
            try testing.expectApproxEqRel(f, again.f_full * scale_of(own, scratch, params), 1e-3);
        }
    };
}

/// Another scale gives the same direction: by how much the points of one code are those of the other.
fn scale_of(own: []const u16, again: []const u16, params: encode.CodeParams) f32 {
    var dot: f64 = 0;
    var own2: f64 = 0;
    for (own, again) |u, v| {
        const x = @as(f64, @floatFromInt(u)) - params.center_full();
        dot += x * (@as(f64, @floatFromInt(v)) - params.center_full());
        own2 += x * x;
    }
    return @floatCast(dot / own2);
}
