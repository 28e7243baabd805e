//! page_codes.bin: a few codes of each page, with which a search begins where memory has no room for codes of vectors. They are
//! product codes; indexes of format 6, which have no tables in their pages, have upper codes and rank all pages by them.
//!
//! They are codes of centers of a page's records, which rank pages better than codes of some of the records do
//! (docs/decisions/0021). Several levels of detail follow one another, so that a budget has the finest that fits. The finest of an
//! index built for it has a code of each record; then the coarsest is in memory, too, and with the center of each page
//! it says whose records are looked at.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Header = layout.headers.PageCodes;
const ProductHeader = layout.headers.PageProducts;

comptime {
    std.debug.assert(layout.page.upper_factor_largest == quant.PositiveFloat.largest);
}

/// Product codes of a page in each level.
const product_counts = [_]u32{ 1, 3, 7 };
/// A page is as near as its nearest code, plus this share of the mean squared distance of records from that code's center
/// (docs/decisions/0024, f).
pub const spread_share = 0.4;

/// `records`: the most of a page; `with_records`: each has a code.
pub fn product_header_of(page_count: u32, records: u32, with_records: bool, code_bytes: u32, product_bytes: u32, code_error: f32) ProductHeader {
    var header: ProductHeader = .{
        .page_count = page_count,
        .code_bytes = code_bytes,
        .product_bytes = product_bytes,
        .level_count = 0,
        .code_error = code_error,
        .f_upper_max = 0,
        .counts = @splat(0),
        .spreads = @splat(0),
        // The one record of a page is its center.
        .record_codes = if (with_records and records > 1) records else 0,
    };
    for (product_counts) |wanted| {
        const count = @min(wanted, records);
        if (header.record_codes > 0 and count == records) break;
        if (header.level_count > 0 and count <= header.counts[header.level_count - 1]) continue;
        header.counts[header.level_count] = count;
        header.level_count += 1;
    }
    return header;
}

/// The part of a file of upper codes that is in memory.
pub const PageCodes = struct {
    memory: base.AlignedBytes,
    /// One a page.
    coarse: quant.Codes,
    /// `count` a page.
    fine: quant.Codes,
    count: u32,
    f_upper_max: f32,

    pub fn deinit(self: *PageCodes) void {
        self.memory.free();
    }
};

/// The part of a file of product codes that is in memory. Kernels may read 64 bytes behind each array of codes.
pub const PageProducts = struct {
    memory: base.AlignedBytes,
    product: quant.Product,
    product_bytes: u64,
    /// Codes of each page, of centers or of records.
    count: u32,
    /// Codes of centers for each page, page by page.
    codes: []const u8,
    /// Of these, for each page.
    center_count: u32,
    /// `count` codes for each page, of its records in their order; empty if memory has none.
    record_codes: []const u8,
    /// With these: pages by their center, ascending, and the first page of each center in that order.
    by_center: []const u32,
    center_starts: []const u32,
    /// A code for each cell of `cell_pages` consecutive pages.
    cell_codes: []const u8,
    /// The page whose code a cell has, counted from the cell's first page.
    cell_places: []const u8,
    /// Added to the estimate of a page code.
    spread: f32,
    /// Mean squared error of a product code.
    code_error: f32,
    /// The largest F of the upper codes of all vectors.
    f_upper_max: f32,

    pub fn deinit(self: *PageProducts, allocator: std.mem.Allocator) void {
        self.product.deinit(allocator);
        self.memory.free();
    }

    pub fn memory_bytes(self: *const PageProducts) u64 {
        return self.memory.bytes.len + self.product_bytes;
    }

    /// Whether memory has a code of each record.
    pub fn has_records(self: *const PageProducts) bool {
        return self.record_codes.len > 0;
    }
};

/// A file's codes of each page in memory, in one form or the other.
pub const Loaded = union(enum) {
    uppers: PageCodes,
    products: PageProducts,

    /// Whether no page has more records than codes of records.
    pub fn holds_records_of(self: *const Loaded, directory: *const layout.page_starts.Directory) bool {
        const own = switch (self.*) {
            .uppers => return true,
            .products => |*found| found,
        };
        if (!own.has_records()) return true;
        for (0..directory.page_count()) |page| if (directory.record_count(@intCast(page)) > own.count) return false;
        return true;
    }

    pub fn deinit(self: *Loaded, allocator: std.mem.Allocator) void {
        switch (self.*) {
            .uppers => |*found| found.deinit(),
            .products => |*found| found.deinit(allocator),
        }
    }
};

/// Levels of a file, and what each takes in memory.
pub const Levels = struct {
    header: union(enum) { uppers: Header, products: ProductHeader },
    /// Of an upper code.
    code_bytes: u64,

    pub fn read(dir: std.fs.Dir, m: *const layout.manifest.Manifest, codes: *const layout.headers.Codes, diagnostic: *Diagnostic) Error!Levels {
        if (!m.page_codes) {
            diagnostic.argument = "plan";
            diagnostic.say("this index was built without codes of its pages (page_codes=True)", .{});
            return error.Unsupported;
        }
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const code_bytes = codes.code_bytes();
        const opened = dir.openFile(file.name, .{}) catch |err| return files.open_error(diagnostic, file.name, err);
        defer opened.close();
        var head: [@sizeOf(Header)]u8 align(8) = undefined;
        const len = opened.readAll(&head) catch |err| return diagnostics.file_error(diagnostic, file.name, "read", err);
        if (len != head.len) return files.bad_file(diagnostic, file.name);
        if (!m.page_tables) {
            const header = std.mem.bytesToValue(Header, &head);
            if (!header.valid() or header.page_count != m.page_count or
                header.level(header.level_count - 1, code_bytes).end != file.bytes) return files.bad_file(diagnostic, file.name);
            return .{ .header = .{ .uppers = header }, .code_bytes = code_bytes };
        }
        const header = std.mem.bytesToValue(ProductHeader, &head);
        if (!header.valid() or header.page_count != m.page_count or header.code_bytes != m.code_bytes or
            header.file_bytes() != file.bytes) return files.bad_file(diagnostic, file.name);
        return .{ .header = .{ .products = header }, .code_bytes = code_bytes };
    }

    pub fn level_count(self: *const Levels) usize {
        return switch (self.header) {
            .uppers => |*header| header.level_count,
            .products => |*header| header.level_count + @intFromBool(header.record_codes > 0),
        };
    }

    /// Codes of a page in a level; levels ascend.
    pub fn count_of(self: *const Levels, number: usize) u32 {
        return switch (self.header) {
            .uppers => |*header| header.counts[number],
            .products => |*header| if (number == header.level_count) header.record_codes else header.counts[number],
        };
    }

    /// Of codes and what goes with them: of upper codes the coarsest level precedes each other, of product codes the quantizer
    /// and cells precede any.
    pub fn memory_bytes(self: *const Levels, number: usize) u64 {
        return switch (self.header) {
            .uppers => |*header| self.upper_bytes(header, 0) + if (number > 0) self.upper_bytes(header, number) else 0,
            .products => |*header| std.mem.alignForward(u64, header.product_bytes, 64) + products_bytes(header, number),
        };
    }

    fn upper_bytes(self: *const Levels, header: *const Header, number: usize) u64 {
        const level = header.level(number, self.code_bytes);
        return std.mem.alignForward(u64, level.end - level.codes, 64);
    }

    /// The finest level that fits; null where none does.
    pub fn within(self: *const Levels, room: ?u64) ?usize {
        var number: usize = self.level_count();
        while (number > 0) {
            number -= 1;
            if (self.memory_bytes(number) <= room orelse std.math.maxInt(u64)) return number;
        }
        return null;
    }

    fn with_count(self: *const Levels, count: u32) ?usize {
        for (0..self.level_count()) |number| if (self.count_of(number) == count) return number;
        return null;
    }

    /// `codes` has what codes of pages and of vectors have in common.
    pub fn load(self: *const Levels, allocator: std.mem.Allocator, dir: std.fs.Dir, file: layout.manifest.File, number: usize, dim: u32, codes: *const quant.Codes, diagnostic: *Diagnostic) Error!Loaded {
        var mapped = try files.map_checked(allocator, dir, file, diagnostic);
        defer mapped.free();
        return switch (self.header) {
            .uppers => |*header| .{ .uppers = try self.load_uppers(header, mapped.bytes, number, codes, file.name, diagnostic) },
            .products => |*header| .{ .products = try load_products(allocator, header, mapped.bytes, number, dim, codes.centers.len / codes.params.dim, file.name, diagnostic) },
        };
    }

    fn load_uppers(self: *const Levels, header: *const Header, whole: []const u8, number: usize, codes: *const quant.Codes, name: []const u8, diagnostic: *Diagnostic) Error!PageCodes {
        var memory = try base.AlignedBytes.alloc(@intCast(self.memory_bytes(number)), .{ .huge_pages = true });
        errdefer memory.free();
        const coarse = try self.place(header, whole, 0, memory.bytes, codes, name, diagnostic);
        const fine = if (number == 0) coarse else try self.place(header, whole, number, @alignCast(memory.bytes[@intCast(self.upper_bytes(header, 0))..]), codes, name, diagnostic);
        return .{ .memory = memory, .coarse = coarse, .fine = fine, .count = header.counts[number], .f_upper_max = header.f_upper_max };
    }

    fn place(self: *const Levels, header: *const Header, whole: []const u8, number: usize, memory: []align(64) u8, codes: *const quant.Codes, name: []const u8, diagnostic: *Diagnostic) Error!quant.Codes {
        const level = header.level(number, self.code_bytes);
        const bytes = memory[0..@intCast(level.end - level.codes)];
        @memcpy(bytes, whole[@intCast(level.codes)..@intCast(level.end)]);
        files.forget(whole[@intCast(level.codes)..@intCast(level.end)]);
        var placed = codes.*;
        placed.n = header.page_count * header.counts[number];
        placed.bytes = bytes;
        placed.factors = @alignCast(std.mem.bytesAsSlice(u32, bytes[@intCast(level.factors - level.codes)..][0 .. 4 * @as(usize, placed.n)]));
        placed.center_ids = bytes[@intCast(level.center_ids - level.codes)..][0..placed.n];
        if (!files.codes_valid(&placed)) return files.bad_file(diagnostic, name);
        return placed;
    }
};

/// Parts of a file of product codes that are in memory with a level, each with padding.
fn product_parts(header: *const ProductHeader, number: usize) [3]ProductHeader.Part {
    if (number < header.level_count) return .{ header.level(number), header.cell_codes(), header.cell_places() };
    const none: ProductHeader.Part = .{ .begin = 0, .end = 0 };
    return .{ header.level(0), header.records(), none };
}

/// Pages by their center, and where those of each begin.
fn by_center_bytes(header: *const ProductHeader, number: usize) u64 {
    if (number < header.level_count) return 0;
    return std.mem.alignForward(u64, 4 * (@as(u64, header.page_count) + base.limits.centers_max + 1), 64);
}

fn padded_bytes(part: ProductHeader.Part) u64 {
    return std.mem.alignForward(u64, part.end - part.begin + layout.headers.Codes.padding_bytes, 64);
}

fn products_bytes(header: *const ProductHeader, number: usize) u64 {
    var sum: u64 = 0;
    for (product_parts(header, number)) |part| sum += padded_bytes(part);
    return sum + by_center_bytes(header, number);
}

fn sort_by_center(centers: []const u8, by_center: []u32, starts: []u32) void {
    @memset(starts, 0);
    for (centers) |center| starts[@as(usize, center) + 1] += 1;
    for (starts[1..], starts[0 .. starts.len - 1]) |*start, before| start.* += before;
    for (centers, 0..) |center, page| {
        by_center[starts[center]] = @intCast(page);
        starts[center] += 1;
    }
    // Each is the end of its center now.
    std.mem.copyBackwards(u32, starts[1..], starts[0 .. starts.len - 1]);
    starts[0] = 0;
}

test "pages by their center" {
    var by_center: [6]u32 = undefined;
    var starts: [5]u32 = undefined;
    sort_by_center(&.{ 3, 0, 3, 1, 0, 3 }, &by_center, &starts);
    try std.testing.expectEqualSlices(u32, &.{ 1, 4, 3, 0, 2, 5 }, &by_center);
    try std.testing.expectEqualSlices(u32, &.{ 0, 2, 3, 3, 6 }, &starts);
}

fn load_products(allocator: std.mem.Allocator, header: *const ProductHeader, whole: []const u8, number: usize, dim: u32, center_count: usize, name: []const u8, diagnostic: *Diagnostic) Error!PageProducts {
    const own = header.product();
    var product = quant.Product.load(allocator, whole[@intCast(own.begin)..@intCast(own.end)]) catch |err| switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        error.BadProduct => return files.bad_file(diagnostic, name),
    };
    errdefer product.deinit(allocator);
    if (product.dim != dim or product.parts != header.code_bytes or
        product.stored_bytes() != header.product_bytes) return files.bad_file(diagnostic, name);
    var memory = try base.AlignedBytes.alloc(@intCast(products_bytes(header, number)), .{ .huge_pages = true });
    errdefer memory.free();
    var arrays: [3][]const u8 = undefined;
    var at: usize = 0;
    for (&arrays, product_parts(header, number)) |*array, part| {
        const bytes = whole[@intCast(part.begin)..@intCast(part.end)];
        const padded = memory.bytes[at..][0..@intCast(padded_bytes(part))];
        @memcpy(padded[0..bytes.len], bytes);
        @memset(padded[bytes.len..], 0);
        files.forget(bytes);
        array.* = padded[0..bytes.len];
        at += padded.len;
    }
    const is_of_records = number == header.level_count;
    const codes = arrays[0];
    const record_codes = if (is_of_records) arrays[1] else &.{};
    const cell_codes = if (is_of_records) &.{} else arrays[1];
    const cell_places = if (is_of_records) &.{} else arrays[2];
    const by_center: []u32 = if (is_of_records) @alignCast(std.mem.bytesAsSlice(u32, memory.bytes[at..][0 .. 4 * @as(usize, header.page_count)])) else &.{};
    const center_starts: []u32 = if (is_of_records) @alignCast(std.mem.bytesAsSlice(u32, memory.bytes[at + 4 * by_center.len ..][0 .. 4 * (center_count + 1)])) else &.{};
    if (is_of_records) {
        const part = header.page_centers();
        const centers = whole[@intCast(part.begin)..@intCast(part.end)];
        for (centers) |center| if (center >= center_count) return files.bad_file(diagnostic, name);
        sort_by_center(centers, by_center, center_starts);
        files.forget(centers);
    }
    for (cell_places, 0..) |place, cell| if (cell * ProductHeader.cell_pages + place >= header.page_count or place >= ProductHeader.cell_pages) return files.bad_file(diagnostic, name);
    return .{
        .memory = memory,
        .product = product,
        .product_bytes = std.mem.alignForward(u64, header.product_bytes, 64),
        .count = if (is_of_records) header.record_codes else header.counts[number],
        .codes = codes,
        .center_count = if (is_of_records) 1 else header.counts[number],
        .record_codes = record_codes,
        .by_center = by_center,
        .center_starts = center_starts,
        .cell_codes = cell_codes,
        .cell_places = cell_places,
        .spread = header.spreads[if (is_of_records) 0 else number],
        .code_error = header.code_error,
        .f_upper_max = header.f_upper_max,
    };
}

/// The level of codes of pages that is searched with.
pub const Chosen = struct {
    levels: Levels,
    file: layout.manifest.File,
    number: usize,
    /// Of codes in memory.
    bytes: u64,

    pub fn of(levels: *const Levels, m: *const layout.manifest.Manifest, header: *const layout.headers.Codes, directory_bytes: u64, memory_bytes: u64, wanted: ?u32, diagnostic: *Diagnostic) Error!Chosen {
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const beside = header.codes_offset() + directory_bytes;
        const room: ?u64 = if (memory_bytes == 0) null else memory_bytes -| beside;
        const number = if (wanted) |count| levels.with_count(count) orelse {
            diagnostic.argument = "links_kept";
            var buffer: [layout.headers.PageCodes.levels_max + layout.headers.PageProducts.levels_max]u32 = undefined;
            for (buffer[0..levels.level_count()], 0..) |*one, number| one.* = levels.count_of(number);
            diagnostic.say("links_kept is {d}; codes of each page this index has {any}", .{ count, buffer[0..levels.level_count()] });
            return error.InvalidArgument;
        } else levels.within(room) orelse 0;
        if (levels.memory_bytes(number) > room orelse std.math.maxInt(u64)) {
            diagnostic.argument = "memory";
            diagnostic.needed_bytes = beside + levels.memory_bytes(number);
            diagnostic.say("memory is {d} bytes, but codes of pages and the page directory take {d}", .{ memory_bytes, diagnostic.needed_bytes });
            return error.BudgetTooSmall;
        }
        return .{ .levels = levels.*, .file = file, .number = number, .bytes = header.codes_offset() + levels.memory_bytes(number) };
    }
};

test "levels of product codes have at most as many codes as a page has records" {
    for ([_]struct { u32, []const u32 }{ .{ 1, &.{1} }, .{ 2, &.{ 1, 2 } }, .{ 3, &.{ 1, 3 } }, .{ 4, &.{ 1, 3, 4 } }, .{ 13, &.{ 1, 3, 7 } } }) |case| {
        const records, const counts = case;
        for ([_]bool{ false, true }) |with_records| {
            const header = product_header_of(10, records, with_records, 16, 100, 0.5);
            try std.testing.expect(header.valid());
            const levels: Levels = .{ .header = .{ .products = header }, .code_bytes = 0 };
            // A level of records takes the place of one with as many centers.
            const has_own = with_records and records > counts[counts.len - 1];
            try std.testing.expectEqual(counts.len + @intFromBool(has_own), levels.level_count());
            for (counts, 0..) |count, number| try std.testing.expectEqual(count, levels.count_of(number));
            if (has_own) try std.testing.expectEqual(records, levels.count_of(counts.len));
            try std.testing.expectEqual(with_records and records > 1, header.record_codes > 0);
        }
    }
}
