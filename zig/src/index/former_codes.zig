//! Codes of a former index that stores no vectors. They are all that is left of its rows, so a build of the same bits copies
//! them, with the mean, the rotation and the centers that they were made with: their rows lose nothing, however often they
//! are built again. The rows that come with them are what the codes tell (decoded.zig).
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const reader = @import("reader.zig");
const work = @import("work.zig");
const EncodeThread = @import("encode_thread.zig").EncodeThread;
const Former = @import("former.zig").Former;
const Options = @import("options.zig").Options;
const PageWalk = @import("page_walk.zig").PageWalk;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const FormerCodes = struct {
    allocator: std.mem.Allocator,
    /// Where it stays: the walk points to it.
    opened: *reader.Reader,
    /// codes.bin; of what was passed little stays in memory.
    mapped: files.Mapped,
    walk: PageWalk,
    page: ?layout.page.View = null,
    /// As `Former` has them.
    rows: []const u32,
    next: u32 = 0,
    forgotten: u32 = 0,
    /// Those of the file.
    centers: []const f32,
    /// The new index is made with its centers, so its codes are copied; else they are made anew.
    is_copied: bool = false,

    /// Rows between two times that what was passed leaves memory.
    const forgotten_rows = 1 << 16;
    /// Squared errors go with the squared distances of rows to centers. Codes that are made anew double them, for those of both
    /// codes add up; copied ones lose nothing, but new rows have centers that are not all made for them.
    const spread_max = 1.5;
    const spread_rounding = 1e-9;

    /// Null where its codes say nothing here: bits are others, or vectors that are stored say more.
    pub fn open(allocator: std.mem.Allocator, former: *const Former, options: *const Options, params: quant.CodeParams, diagnostic: *Diagnostic) Error!?FormerCodes {
        if (options.store_vectors or !ascend(former.rows)) return null;
        const opened = try allocator.create(reader.Reader);
        var kept = false;
        defer if (!kept) allocator.destroy(opened);
        opened.* = try .open(allocator, former.path, .{ .links = .on_disk, .codes = false }, diagnostic);
        defer if (!kept) opened.deinit();
        const header = &opened.header;
        if (opened.vectors != null or header.n != former.rows.len or header.dim_in != options.dim or opened.metric != options.metric or
            header.memory_bits != params.memory_bits or header.record_bits != params.record_bits) return null;
        const file = opened.manifest().file(reader.file_codes).?; // it was opened
        const sum = std.fmt.parseInt(u64, file.checksum, 16) catch return reader.bad_manifest(diagnostic, file.name);
        var mapped = try files.map_checked(allocator, opened.dir, file.name, @intCast(file.bytes), sum, diagnostic);
        defer if (!kept) mapped.free();
        const centers: []const f32 = @alignCast(std.mem.bytesAsSlice(f32, mapped.bytes[@intCast(header.centers_offset())..][0..@intCast(header.centers_bytes())]));
        if (!reader.all_finite(centers)) return reader.bad_file(diagnostic, file.name);
        const walk = try PageWalk.init(allocator, opened);
        kept = true;
        return .{ .allocator = allocator, .opened = opened, .mapped = mapped, .walk = walk, .rows = former.rows, .centers = centers };
    }

    pub fn deinit(self: *FormerCodes) void {
        self.walk.deinit();
        self.mapped.free();
        self.opened.deinit();
        self.allocator.destroy(self.opened);
    }

    fn ascend(rows: []const u32) bool {
        var last: ?u32 = null;
        for (rows) |row| {
            if (row == Former.gone) continue;
            if (last != null and row <= last.?) return false;
            last = row;
        }
        return true;
    }

    /// Its centers and others beside them, for the rows of `sample`; null where they are too far from these rows, so that its
    /// codes are made anew around `fresh` ones. Those were made of the sample around the mean `mean`; the rotation is the same.
    pub fn centers_for(self: *const FormerCodes, rotation: *const quant.Rotation, mean: []const f32, fresh: *const quant.Centers, sample: []const f32) error{OutOfMemory}!?quant.Centers {
        const dim = fresh.dim;
        const scratch = try self.allocator.alloc(f32, dim + mean.len + self.centers.len);
        defer self.allocator.free(scratch);
        const shift = scratch[0..dim];
        const between = scratch[dim..][0..mean.len];
        const moved = scratch[dim + mean.len ..];
        for (between, self.opened.mean, mean) |*gap, own, other| gap.* = own - other;
        rotation.apply(between, shift);
        for (moved, self.centers, 0..) |*value, own, i| value.* = own + shift[i % dim];
        const own_count: u32 = @intCast(moved.len / dim);
        var centers = try quant.Centers.train_beside(self.allocator, dim, sample, moved, @max(own_count, fresh.count()));
        const rounding = spread_rounding * @as(f64, quant.kernels().sum_squares(sample.ptr, @intCast(sample.len)));
        if (centers.spread(sample) > spread_max * fresh.spread(sample) + rounding) {
            centers.deinit(self.allocator);
            return null;
        }
        centers.put_back(self.centers, shift);
        return centers;
    }

    /// Copies the codes of those rows of a run that it has, which the thread then leaves as they are. Runs come in order.
    pub fn fill(self: *FormerCodes, thread: *EncodeThread, diagnostic: *Diagnostic) Error!void {
        const header = &self.opened.header;
        const tan2_upper = @as(f64, header.tan_upper) * header.tan_upper;
        const tan2_full = @as(f64, header.tan_full) * header.tan_full;
        const row_bytes = work.row_bytes_of(self.opened.codes.params);
        for (0..thread.count) |i| {
            const vertex = self.vertex_of(thread.first + i) orelse continue;
            if (!self.is_copied) {
                // What is encoded is a code's point already: its error comes on top.
                thread.errors.tan2_upper += tan2_full;
                thread.errors.tan2_full += tan2_full;
                continue;
            }
            const f_upper = try self.copy(vertex, thread.stored[i * row_bytes ..][0..row_bytes], diagnostic);
            thread.has_code.set(i);
            if (!(f_upper > 0)) continue;
            thread.errors.tan2_upper += tan2_upper;
            thread.errors.tan2_full += tan2_full;
            thread.errors.norm2_per_f2 += header.norm2_per_f2;
            thread.errors.count += 1;
        }
    }

    fn vertex_of(self: *FormerCodes, row: u64) ?u32 {
        while (self.next < self.rows.len and (self.rows[self.next] == Former.gone or self.rows[self.next] < row)) self.next += 1;
        return if (self.next < self.rows.len and self.rows[self.next] == row) self.next else null;
    }

    fn copy(self: *FormerCodes, vertex: u32, out: []u8, diagnostic: *Diagnostic) Error!f32 {
        if (self.page == null or !self.page.?.has(vertex)) {
            self.page = null;
            self.walk.seek(self.opened.directory.page_of(vertex));
            self.page = try self.walk.next(diagnostic);
        }
        const view = &self.page.?;
        const header = &self.opened.header;
        const params = self.opened.codes.params;
        const record = vertex - view.first_vertex;
        const whole = self.mapped.bytes;
        const pair = std.mem.readInt(u32, whole[@intCast(header.factors_offset() + 4 * @as(u64, vertex))..][0..4], .little);
        const center = whole[@intCast(header.center_ids_offset() + vertex)];
        if (center >= header.center_count or @max(@as(u16, @truncate(pair)), pair >> 16) > quant.PositiveFloat.largest)
            return reader.bad_file(diagnostic, reader.file_codes);
        const upper = whole[@intCast(header.codes_offset() + vertex * params.upper_bytes())..][0..params.upper_bytes()];
        const lower = view.lower[record * params.lower_bytes() ..][0..params.lower_bytes()];
        work.copy_row(params, upper, lower, center, &.{ .memory = pair, .record = .{ .offset = view.offsets[record], .ratio = view.ratios[record] } }, out);
        self.forget(vertex);
        return quant.PositiveFloat.decode(@intCast(pair >> 16));
    }

    fn forget(self: *FormerCodes, vertex: u32) void {
        if (vertex - self.forgotten < forgotten_rows) return;
        const header = &self.opened.header;
        for ([_]u64{ header.codes_offset(), header.factors_offset(), header.center_ids_offset() }, [_]u64{ header.code_bytes(), 4, 1 }) |begin, each|
            files.forget(self.mapped.bytes[@intCast(begin + each * self.forgotten)..@intCast(begin + each * vertex)]);
        self.forgotten = vertex;
    }
};
