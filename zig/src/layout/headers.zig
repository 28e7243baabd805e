//! Headers of the binary files, as they lie on disk (little-endian; docs/FORMAT.md draws them).
const std = @import("std");
const builtin = @import("builtin");
const adjacency = @import("adjacency.zig");
const page_lists = @import("page_lists.zig");
const links = @import("links.zig");
const page = @import("page.zig");

comptime {
    if (builtin.cpu.arch.endian() != .little) @compileError("velo's files are little-endian and so must be the machine");
}

/// codes.bin: this header, the mean (f32 × dim_in), the centers (f32 × dim_code each), zeros up to `codes_offset`, then
/// the packed codes, zeros up to `factors_offset`, the factors, the numbers of centers (a byte each) and padding.
pub const Codes = extern struct {
    magic: [8]u8 = magic_expected.*,
    format_version: u32,
    entry_vertex: u32, // where a search may always start (the medoid)
    n: u64,
    dim_in: u32,
    dim_code: u32,
    metric: i32,
    memory_bits: u32,
    record_bits: u32,
    center_count: u32,
    rotation_seed: u64,
    tan_upper: f32,
    tan_full: f32,
    norm2_per_f2: f32, // |o|²/F_upper², the mean over all vectors
    remote_norm2: f32, // a query of a larger |q|² lies outside the rows
    reserved: [14]u32 = @splat(0),

    pub const magic_expected = "VELOCODE";
    /// Kernels may look that far past the last entry.
    pub const padding_bytes = 64;

    /// Whether lengths and angles can be such: a NaN in them would be one in every distance.
    pub fn measures_valid(self: *const Codes) bool {
        inline for (@typeInfo(Codes).@"struct".fields) |field| {
            if (field.type != f32) continue;
            const value = @field(self, field.name);
            if (!std.math.isFinite(value) or value < 0) return false;
        }
        return true;
    }

    pub fn centers_offset(self: *const Codes) u64 {
        return @sizeOf(Codes) + @as(u64, self.dim_in) * 4;
    }
    pub fn centers_bytes(self: *const Codes) u64 {
        return @as(u64, self.center_count) * self.dim_code * 4;
    }
    pub fn codes_offset(self: *const Codes) u64 {
        return std.mem.alignForward(u64, self.centers_offset() + self.centers_bytes(), 64);
    }
    pub fn code_bytes(self: *const Codes) u64 {
        return @as(u64, self.dim_code) * self.memory_bits / 8;
    }
    pub fn factors_offset(self: *const Codes) u64 {
        return std.mem.alignForward(u64, self.codes_offset() + self.n * self.code_bytes(), 64);
    }
    pub fn center_ids_offset(self: *const Codes) u64 {
        return self.factors_offset() + self.n * 4;
    }
    pub fn file_bytes(self: *const Codes) u64 {
        return self.center_ids_offset() + self.n + padding_bytes;
    }
};

/// links.bin: this header, then the parts that links.zig draws.
pub const Links = extern struct {
    magic: [8]u8 = magic_expected.*,
    n: u64,
    links_built: u32,
    reserved: u32 = 0,
    heap_bytes: u64, // with its padding
    codec: [adjacency.Codec.stored_bytes]u8,
    zeros: [30]u8 = @splat(0),

    pub const magic_expected = "VELOLINK";

    /// Header, groups, lengths and heap: what an open that keeps every link has in memory.
    pub fn resident_bytes(self: *const Links) u64 {
        const groups = links.group_count(@intCast(self.n));
        return @sizeOf(Links) + (@as(u64, groups) + 1) * 8 + @as(u64, groups) * links.group_size + self.heap_bytes;
    }

    pub fn file_bytes(self: *const Links) u64 {
        return self.resident_bytes() + self.n * links.tier_bytes(self.links_built);
    }
};

/// page_codes.bin: this header, then levels, each at a multiple of 64 bytes: codes of each page, packed, zeros up to the next
/// multiple of 64, their factors, the numbers of their centers, and padding.
pub const PageCodes = extern struct {
    magic: [8]u8 = magic_expected.*,
    page_count: u32,
    level_count: u32,
    /// Codes a page of each level, ascending; the first has 1.
    counts: [levels_max]u32,
    /// The largest F of the upper codes of all vectors.
    f_upper_max: f32,
    zeros: [7]u32 = @splat(0),

    pub const magic_expected = "VELOPGCO";
    pub const levels_max = 4;

    /// Offsets of the three arrays of a level, and of its end.
    pub const Level = struct { codes: u64, factors: u64, center_ids: u64, end: u64 };

    pub fn level(self: *const PageCodes, number: usize, code_bytes: u64) Level {
        var at: u64 = @sizeOf(PageCodes);
        for (self.counts[0 .. number + 1], 0..) |count, i| {
            const codes = std.mem.alignForward(u64, at, 64);
            const each = @as(u64, self.page_count) * count;
            const factors = std.mem.alignForward(u64, codes + each * code_bytes, 64);
            at = factors + 5 * each + Codes.padding_bytes;
            if (i == number) return .{ .codes = codes, .factors = factors, .center_ids = factors + 4 * each, .end = at };
        }
        unreachable;
    }

    pub fn valid(self: *const PageCodes) bool {
        if (!std.mem.eql(u8, &self.magic, magic_expected) or self.level_count < 1 or self.level_count > levels_max or
            self.counts[0] != 1 or !std.math.isFinite(self.f_upper_max) or self.f_upper_max < 0) return false;
        for (self.counts[1..self.level_count], self.counts[0 .. self.level_count - 1]) |count, below|
            if (count <= below or count > page.records_max) return false;
        return true;
    }
};

/// page_codes.bin of an index whose pages have tables: this header, the product quantizer, levels, in format 8 codes of all records and
/// the center of each page, then cells, each at a multiple of 64 bytes and with padding behind it.
pub const PageProducts = extern struct {
    magic: [8]u8 = magic_expected.*,
    page_count: u32,
    /// Of a product code.
    code_bytes: u32,
    /// Of the quantizer, which follows this header.
    product_bytes: u32,
    level_count: u32,
    /// Mean squared error of a product code.
    code_error: f32,
    /// The largest F of the upper codes of all vectors.
    f_upper_max: f32,
    /// Codes of a page in each level, ascending; the first has 1.
    counts: [levels_max]u32,
    /// Added to the estimate of a page code, for each level.
    spreads: [levels_max]f32,
    /// Codes of the records of a page, if the file has them: as many as a page holds at most; else 0.
    record_codes: u32 = 0,
    zeros: [1]u32 = @splat(0),

    pub const magic_expected = "VELOPROD";
    pub const levels_max = 3;
    /// Consecutive pages that share one code.
    pub const cell_pages = 64;

    pub const Part = struct { begin: u64, end: u64 };

    pub fn product(self: *const PageProducts) Part {
        return .{ .begin = @sizeOf(PageProducts), .end = @sizeOf(PageProducts) + @as(u64, self.product_bytes) };
    }

    /// Codes of each page, page by page; without padding, as the other parts.
    pub fn level(self: *const PageProducts, number: usize) Part {
        var part = self.product();
        for (self.counts[0 .. number + 1], 0..) |count, i| {
            const begin = std.mem.alignForward(u64, part.end + @as(u64, if (i > 0) Codes.padding_bytes else 0), 64);
            part = .{ .begin = begin, .end = begin + @as(u64, self.page_count) * count * self.code_bytes };
        }
        return part;
    }

    /// A code of each record, page by page, or nothing.
    pub fn records(self: *const PageProducts) Part {
        const last = self.level(self.level_count - 1);
        if (self.record_codes == 0) return .{ .begin = last.end, .end = last.end };
        const begin = std.mem.alignForward(u64, last.end + Codes.padding_bytes, 64);
        return .{ .begin = begin, .end = begin + @as(u64, self.page_count) * self.record_codes * self.code_bytes };
    }

    /// The number of the center nearest to each page's mean, where there are codes of records; else nothing.
    pub fn page_centers(self: *const PageProducts) Part {
        const before = self.records().end;
        if (self.record_codes == 0) return .{ .begin = before, .end = before };
        const begin = std.mem.alignForward(u64, before + Codes.padding_bytes, 64);
        return .{ .begin = begin, .end = begin + self.page_count };
    }

    pub fn cell_count(self: *const PageProducts) u32 {
        return (self.page_count + cell_pages - 1) / cell_pages;
    }

    /// A code of each cell.
    pub fn cell_codes(self: *const PageProducts) Part {
        const begin = std.mem.alignForward(u64, self.page_centers().end + Codes.padding_bytes, 64);
        return .{ .begin = begin, .end = begin + @as(u64, self.cell_count()) * self.code_bytes };
    }

    /// The page in each cell whose first code that is, counted from the cell's first page.
    pub fn cell_places(self: *const PageProducts) Part {
        const begin = std.mem.alignForward(u64, self.cell_codes().end + Codes.padding_bytes, 64);
        return .{ .begin = begin, .end = begin + self.cell_count() };
    }

    pub fn file_bytes(self: *const PageProducts) u64 {
        return self.cell_places().end;
    }

    pub fn valid(self: *const PageProducts) bool {
        if (!std.mem.eql(u8, &self.magic, magic_expected) or self.page_count < 1 or self.level_count < 1 or self.level_count > levels_max or
            self.code_bytes < 1 or self.code_bytes > page.code_bytes_max or self.counts[0] != 1 or self.record_codes > page.records_max or
            !std.math.isFinite(self.code_error) or self.code_error < 0 or
            !std.math.isFinite(self.f_upper_max) or self.f_upper_max < 0) return false;
        for (self.counts[1..self.level_count], self.counts[0 .. self.level_count - 1]) |count, below|
            if (count <= below or count > page.records_max) return false;
        for (self.spreads[0..self.level_count]) |spread| if (!std.math.isFinite(spread) or spread < 0) return false;
        return true;
    }
};

/// pages.bin: a page that begins with this header, then the data pages.
pub const Pages = extern struct {
    magic: [8]u8 = magic_expected.*,
    checksum: u64, // xxh3-64 of the rest of this header
    page_size: u32,
    page_count: u32, // data pages
    salt: u32,
    lower_bytes: u32,
    codec: [page_lists.Codec.stored_bytes]u8,
    zeros: [36]u8 = @splat(0),

    pub const magic_expected = "VELOPAGE";

    /// Offset of a data page in the file.
    pub fn offset_of(self: *const Pages, page_index: u32) u64 {
        return (@as(u64, page_index) + 1) * self.page_size;
    }
};

comptime {
    std.debug.assert(@sizeOf(Codes) == 128);
    std.debug.assert(@sizeOf(Links) == 128);
    std.debug.assert(@sizeOf(PageCodes) == 64);
    std.debug.assert(@sizeOf(PageProducts) == 64);
    std.debug.assert(@sizeOf(Pages) == 960);
}

test "lengths and angles that no rows have are refused" {
    const right: Codes = .{
        .format_version = 1,
        .entry_vertex = 0,
        .n = 1,
        .dim_in = 16,
        .dim_code = 16,
        .metric = 0,
        .memory_bits = 4,
        .record_bits = 4,
        .center_count = 1,
        .rotation_seed = 0,
        .tan_upper = 0.1,
        .tan_full = 0,
        .norm2_per_f2 = 1,
        .remote_norm2 = std.math.floatMax(f32),
    };
    try std.testing.expect(right.measures_valid());
    inline for (.{ "tan_upper", "tan_full", "norm2_per_f2", "remote_norm2" }) |name| {
        for ([_]f32{ -0.1, -std.math.floatMax(f32), std.math.nan(f32), std.math.inf(f32) }) |wrong| {
            var header = right;
            @field(header, name) = wrong;
            try std.testing.expect(!header.measures_valid());
        }
    }
}

test "parts of page_codes.bin follow one another, and numbers that no build writes are refused" {
    var right: PageProducts = .{
        .page_count = 130,
        .code_bytes = 16,
        .product_bytes = 1001,
        .level_count = 3,
        .code_error = 0.5,
        .f_upper_max = 0.1,
        .counts = .{ 1, 3, 7 },
        .spreads = .{ 3, 2, 1 },
    };
    try std.testing.expect(right.valid());
    try std.testing.expectEqual(3, right.cell_count());
    var at = right.product().end;
    for (0..right.level_count) |number| {
        const part = right.level(number);
        try std.testing.expect(part.begin >= at and part.begin % 64 == 0);
        try std.testing.expectEqual(130 * 16 * right.counts[number], part.end - part.begin);
        at = part.end + Codes.padding_bytes;
    }
    try std.testing.expect(right.cell_codes().begin >= at);
    right.record_codes = 24;
    try std.testing.expect(right.valid() and right.records().begin >= at and right.records().begin % 64 == 0);
    try std.testing.expectEqual(130 * 16 * 24, right.records().end - right.records().begin);
    try std.testing.expect(right.page_centers().begin >= right.records().end + Codes.padding_bytes);
    try std.testing.expectEqual(130, right.page_centers().end - right.page_centers().begin);
    try std.testing.expect(right.cell_codes().begin >= right.page_centers().end + Codes.padding_bytes);
    try std.testing.expectEqual(right.cell_codes().begin + 3 * 16, right.cell_codes().end);
    try std.testing.expectEqual(right.cell_places().begin + 3, right.file_bytes());
    var wrong = right;
    for ([_]u32{ 0, 65 }) |bytes| {
        wrong.code_bytes = bytes;
        try std.testing.expect(!wrong.valid());
    }
    wrong = right;
    for ([_][3]u32{ .{ 1, 1, 7 }, .{ 2, 3, 7 }, .{ 1, 7, 3 }, .{ 1, 3, page.records_max + 1 } }) |counts| {
        wrong.counts = counts;
        try std.testing.expect(!wrong.valid());
    }
    wrong = right;
    wrong.record_codes = page.records_max + 1;
    try std.testing.expect(!wrong.valid());
    wrong = right;
    for ([_]f32{ -1, std.math.nan(f32), std.math.inf(f32) }) |number| {
        wrong.spreads[1] = number;
        try std.testing.expect(!wrong.valid());
        wrong.spreads[1] = 2;
        wrong.code_error = number;
        try std.testing.expect(!wrong.valid());
        wrong.code_error = 0;
        wrong.f_upper_max = number;
        try std.testing.expect(!wrong.valid());
        wrong.f_upper_max = 0;
    }
}
