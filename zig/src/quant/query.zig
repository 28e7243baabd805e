//! One query against codes: quantised once, then estimated in integers. Symbols are those of docs/rabitq.md.
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;
const base = @import("base");
const dispatch = @import("dispatch.zig");
const abi = @import("kernels/abi.zig");
const blocks = @import("blocks.zig");
const encode = @import("encode.zig");
const CodeParams = encode.CodeParams;
const Codes = encode.Codes;
const RecordFactors = encode.RecordFactors;

/// Codes refined per inner round: their dot products lie on the stack.
const chunk = abi.records_together;

pub const Query = struct {
    params: CodeParams,
    kernels: *const dispatch.Kernels,
    /// All three planes in one allocation.
    planes: []align(64) i8,
    /// The query in 8 bits, for navigation: q ≈ coarse_step·coarse.
    coarse: []align(64) i8,
    /// The query in 16 bits, for records: q ≈ fine_step·(256·hi + lo).
    hi: []align(64) i8,
    lo: []align(64) i8,
    coarse_step: f32 = 0,
    fine_step: f32 = 0,
    /// Σ coarse, Σ (256·hi + lo)
    coarse_sum: i32 = 0,
    fine_sum: i32 = 0,
    /// The share of a code's own center in an estimate by the coarse query.
    coarse_bias: f32 = 0,
    /// |q|²
    norm2: f32 = 0,
    /// The term of an estimate that depends on the query and each center alone: |q|² − 2·⟨q,c⟩; for products −2·⟨q,c⟩.
    terms: [base.limits.centers_max]f32 = @splat(0),
    /// |q − coarse_step·coarse|²/|q|²: what rounding the query adds to tan² of the code.
    coarse_error2: f32 = 0,
    /// Of the codes that are searched, see `bind`.
    centers: []const f32 = &.{},
    form: encode.Form = .distance,
    tan_upper: f32 = -1,
    tan_full: f32 = -1,

    pub fn init(alloc: std.mem.Allocator, params: CodeParams) std.mem.Allocator.Error!Query {
        params.check();
        const width = std.mem.alignForward(usize, params.dim, 64);
        const planes = try alloc.alignedAlloc(i8, .@"64", 3 * width);
        @memset(planes, 0);
        return .{
            .params = params,
            .kernels = dispatch.kernels(),
            .planes = planes,
            .coarse = planes[0..width],
            .hi = @alignCast(planes[width..][0..width]),
            .lo = @alignCast(planes[2 * width ..][0..width]),
        };
    }

    pub fn deinit(self: *Query, alloc: std.mem.Allocator) void {
        alloc.free(self.planes);
        self.* = undefined;
    }

    /// Takes over the centers of codes, which `prepare` needs, and the size of their error.
    pub fn bind(self: *Query, codes: *const Codes) void {
        assert(codes.centers.len > 0 and codes.centers.len % self.params.dim == 0);
        self.centers = codes.centers;
        self.form = codes.form;
        self.tan_upper = codes.tan_upper;
        self.tan_full = if (self.params.record_bits == 0) codes.tan_upper else codes.tan_full;
    }

    /// Quantises a query that is already in the codes' space: minus the mean, rotated. Allocates nothing.
    pub fn prepare(self: *Query, rotated: []const f32) void {
        assert(rotated.len == self.params.dim);
        assert(self.centers.len > 0); // bind first
        const k = self.kernels;
        const largest = k.max_magnitude(rotated.ptr, self.params.dim);
        self.norm2 = k.sum_squares(rotated.ptr, self.params.dim);
        const start = if (self.form == .distance) self.norm2 else 0;
        for (self.terms[0 .. self.centers.len / self.params.dim], 0..) |*term, center|
            term.* = start - 2 * k.dot(rotated.ptr, self.centers.ptr + center * self.params.dim, self.params.dim);
        if (!(largest > encode.Encoder.magnitude_min)) { // the mean itself: every distance is the vector's own norm
            @memset(self.planes, 0);
            self.coarse_step = 0;
            self.fine_step = 0;
            self.coarse_sum = 0;
            self.coarse_bias = 0;
            self.fine_sum = 0;
            self.coarse_error2 = 0;
            return;
        }
        var sums: abi.QuerySums = undefined;
        k.quantise_query(rotated.ptr, self.params.dim, coarse_max / largest, fine_max / largest, self.coarse.ptr, self.hi.ptr, self.lo.ptr, &sums);
        self.coarse_step = largest / coarse_max;
        self.fine_step = largest / fine_max;
        self.coarse_sum = sums.coarse;
        self.coarse_bias = 2 * self.coarse_step * self.params.center_upper() * @as(f32, @floatFromInt(self.coarse_sum));
        self.fine_sum = sums.fine;
        self.coarse_error2 = sums.coarse_error2 * self.coarse_step * self.coarse_step / self.norm2;
    }

    /// The largest of what an estimate takes from a center, whatever its sign.
    pub fn largest_term(self: *const Query) f32 {
        var largest: f32 = 0;
        for (self.terms[0 .. self.centers.len / self.params.dim]) |term| largest = @max(largest, @abs(term));
        return largest;
    }

    const coarse_max: f32 = 127;
    /// 127·256, so that hi is at most 127.
    const fine_max: f32 = 127 * 256;

    /// Squared distances estimated from the codes in memory, to 8 bits of the query.
    pub fn estimate(self: *const Query, codes: *const Codes, ids: []const u32, out: []f32) void {
        self.estimate_asked(codes, ids, 0, out);
    }

    /// The same where `Codes.prefetch` came before, for the first `asked` of them.
    pub inline fn estimate_asked(self: *const Query, codes: *const Codes, ids: []const u32, asked: u32, out: []f32) void {
        assert(ids.len == out.len);
        assert(std.meta.eql(self.params, codes.params));
        const terms = abi.EstimateTerms{
            .centers = codes.center_ids.ptr,
            .query_terms = &self.terms,
            .scale = 2 * self.coarse_step,
            .bias = self.coarse_bias,
        };
        self.kernels.estimate_gather(
            self.coarse.ptr,
            self.params.dim,
            self.params.memory_bits,
            codes.bytes.ptr,
            codes.factors.ptr,
            ids.ptr,
            @intCast(ids.len),
            asked,
            &terms,
            out.ptr,
        );
    }

    /// The term of a center that `prepare` has not seen; `rotated` is what it was called with.
    pub fn term_of(self: *const Query, rotated: []const f32, center: []const f32) f32 {
        const start = if (self.form == .distance) self.norm2 else 0;
        return start - 2 * self.kernels.dot(rotated.ptr, center.ptr, self.params.dim);
    }

    /// The same estimates of codes in blocks, whose factors and centers begin with those of the first block; a bit for each row
    /// whose estimate is at most `reach`.
    pub inline fn estimate_blocks(self: *const Query, bytes: []align(64) const u8, factors: [*]const u32, centers: [*]const u8, reach: f32, out: []f32, near: []u32) void {
        const cell = blocks.cell_of(self.params.memory_bits);
        assert(out.len == near.len * blocks.rows);
        assert(bytes.len == near.len * blocks.block_bytes(self.params.dim, self.params.memory_bits));
        const terms = abi.EstimateTerms{
            .centers = centers,
            .query_terms = &self.terms,
            .scale = 2 * self.coarse_step,
            .bias = self.coarse_bias,
        };
        self.kernels.estimate_blocks(self.coarse.ptr, self.params.dim, cell, bytes.ptr, factors, @intCast(near.len), reach, &terms, out.ptr, near.ptr);
    }

    /// Of the codes whose errors are at most these: none with a larger estimate is within `reach`, less so many standard deviations
    /// (`sigma_upper`). Their variance grows with the distance, so this is the root of a quadratic equation.
    pub fn farthest_estimate(self: *const Query, errors: blocks.Errors, deviations: f32, reach: f32) f32 {
        if (deviations == std.math.inf(f32) or reach == std.math.inf(f32)) return std.math.inf(f32);
        const freedom: f32 = @floatFromInt(self.params.dim - 1);
        const growth = 4 * errors.spread2 / freedom;
        const of_query = 4 * errors.norm2 * self.norm2 * self.coarse_error2 / freedom;
        if (self.form == .product) return reach + errors.rounding + deviations * @sqrt(growth * self.norm2 + of_query);
        const middle = deviations * deviations * growth / 2;
        const root = @sqrt(middle * middle + deviations * deviations * (growth * @max(0, reach) + of_query));
        return reach + errors.rounding + middle + root;
    }

    /// Squared distances to `count` records of one page from all their bits and 16 bits of the query. `uppers` holds what
    /// memory, or the page, knows of them, `lower` their lower codes one after the other, `offsets` and `ratios` their factors
    /// (`encode.RecordFactors`).
    pub fn estimate_page(self: *const Query, uppers: encode.Uppers, count: u32, lower: [*]const u8, offsets: []align(1) const f32, ratios: []align(1) const u16, out: []f32) void {
        assert(out.len >= count);
        assert(offsets.len >= count and ratios.len >= count);
        const k = self.kernels;
        const params = self.params;
        const terms = self.record_terms();
        var done: u32 = 0;
        while (done < count) {
            @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
            const part = @min(chunk, count - done);
            var dots: Dots = undefined;
            k.dot_rows(self.hi.ptr, self.lo.ptr, params.dim, params.memory_bits, uppers.codes + done * params.upper_bytes(), params.upper_bytes(), part, &dots.upper_hi, &dots.upper_lo);
            if (params.record_bits > 0) {
                k.dot_rows(self.hi.ptr, self.lo.ptr, params.dim, params.record_bits, lower + done * params.lower_bytes(), params.lower_bytes(), part, &dots.lower_hi, &dots.lower_lo);
            }
            const records = abi.Records{
                .factors = uppers.factors + done,
                .centers = uppers.center_ids + done,
                .offsets = offsets.ptr + done,
                .ratios = ratios.ptr + done,
            };
            k.record_distances(&dots, &records, &terms, part, out.ptr + done);
            done += part;
        }
    }

    /// The same for single records that lie apart, as in a cache: `lower[j]` and `factors[j]` belong to `ids[j]`.
    pub fn estimate_records(self: *const Query, codes: *const Codes, ids: []const u32, lower: []const [*]const u8, factors: []const RecordFactors, out: []f32) void {
        assert(ids.len == out.len);
        assert(ids.len == lower.len);
        assert(ids.len == factors.len);
        assert(std.meta.eql(self.params, codes.params));
        const k = self.kernels;
        const params = self.params;
        const terms = self.record_terms();
        var done: usize = 0;
        while (done < ids.len) {
            const part = @min(chunk, ids.len - done);
            var dots: Dots = undefined;
            k.dot_gather2(self.hi.ptr, self.lo.ptr, params.dim, params.memory_bits, codes.bytes.ptr, params.upper_bytes(), ids[done..].ptr, @intCast(part), &dots.upper_hi, &dots.upper_lo);
            if (params.record_bits > 0) for (0..part) |j| {
                k.dot_rows(self.hi.ptr, self.lo.ptr, params.dim, params.record_bits, lower[done + j], 0, 1, dots.lower_hi[j..].ptr, dots.lower_lo[j..].ptr);
            };
            var memory_factors: [chunk]u32 = undefined;
            var centers: [chunk]u8 = undefined;
            var offsets: [chunk]f32 = undefined;
            var ratios: [chunk]u16 = undefined;
            for (ids[done..][0..part], factors[done..][0..part], 0..) |id, one, j| {
                memory_factors[j] = codes.factors[id];
                centers[j] = codes.center_ids[id];
                offsets[j] = one.offset;
                ratios[j] = one.ratio;
            }
            const records = abi.Records{ .factors = &memory_factors, .centers = &centers, .offsets = &offsets, .ratios = &ratios };
            k.record_distances(&dots, &records, &terms, @intCast(part), out.ptr + done);
            done += part;
        }
    }

    const Dots = abi.RecordDots;

    fn record_terms(self: *const Query) abi.RecordTerms {
        return .{
            .query_terms = &self.terms,
            // Twice what the center of a code takes from twice ⟨u,q⟩: a whole number, so this is exact.
            .bias = ((@as(i64, 1) << @intCast(self.params.total_bits())) - 1) * self.fine_sum,
            .step = self.fine_step,
            .ratio_step = RecordFactors.step(self.params.record_bits),
            .record_bits = self.params.record_bits,
        };
    }

    /// One standard deviation of `estimate` for a vertex at about squared distance `near2`. The code's error
    /// is orthogonal to `o`, so only the part of the query less the center that is orthogonal to `o` meets it; and that is
    /// no longer than the way from the vertex to the query. A product's error meets the query itself.
    pub fn sigma_upper(self: *const Query, codes: *const Codes, id: u32, near2: f32) f32 {
        return self.sigmas_upper(codes, 1, &.{id}, .{near2})[0];
    }

    /// The same of several vertices.
    pub inline fn sigmas_upper(self: *const Query, codes: *const Codes, comptime count: u32, ids: *const [count]u32, near2: @Vector(count, f32)) @Vector(count, f32) {
        assert(self.tan_upper >= 0); // bind first
        @setRuntimeSafety(builtin.mode == .Debug); // measured (decisions/0007)
        const F = @Vector(count, f32);
        const U = @Vector(count, u32);
        var factors: U = undefined;
        inline for (0..count) |i| {
            assert(ids[i] < codes.n);
            factors[i] = codes.factors[ids[i]];
        }
        const offset: F = @bitCast((factors & @as(U, @splat(0xffff))) << @splat(15));
        const f: F = @bitCast((factors >> @splat(16)) << @splat(15));
        const norm2 = f * f * @as(F, @splat(codes.norm2_per_f2));
        const freedom: F = @splat(@floatFromInt(self.params.dim - 1));
        const met2 = if (self.form == .distance) @max(@as(F, @splat(0)), near2) else @as(F, @splat(self.norm2));
        const tan: F = @splat(self.tan_upper);
        const of_code = @as(F, @splat(2)) * @sqrt(norm2 * (met2 * tan * tan + @as(F, @splat(self.norm2 * self.coarse_error2))) / freedom);
        const of_rounding = @as(F, @splat(offset_rounding)) * offset;
        return @sqrt(of_code * of_code + of_rounding * of_rounding);
    }

    /// Relative root mean square of what rounding A and F together to 16 bits each leaves (`Encoder.store_factors`).
    const offset_rounding: f32 = 3e-4;

    /// One standard deviation of `estimate_page` for a vertex with that |o|².
    pub fn sigma_full(self: *const Query, norm2: f32, near2: f32) f32 {
        assert(self.tan_full >= 0);
        return self.sigma(norm2, near2, self.tan_full, 0);
    }

    /// The query's own rounding error points anywhere.
    fn sigma(self: *const Query, norm2: f32, near2: f32, tan: f32, query_error2: f32) f32 {
        const freedom: f32 = @floatFromInt(self.params.dim - 1);
        const met2 = if (self.form == .distance) @max(0, near2) else self.norm2;
        return 2 * @sqrt(norm2 * (met2 * tan * tan + self.norm2 * query_error2) / freedom);
    }
};
