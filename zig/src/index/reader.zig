//! An index folder opened for reading: everything that lives in memory, and where the pages are. Each resident file
//! is checked against the manifest as it is loaded; pages are checked as they are read.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const page_codes = @import("page_codes.zig");
const block_adjacency = @import("block_adjacency.zig");
const space = @import("space.zig");
const lists_in_memory = @import("lists_in_memory.zig");
const Vectors = @import("vectors.zig").Vectors;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

const Metric = space.Metric;
const Dtype = space.Dtype;
const copy_bytes = 1 << 20;
pub const file_pages = files.file_pages;
pub const file_links = files.file_links;
pub const file_vectors = files.file_vectors;

pub const Options = struct {
    /// Links a vertex in memory; null leaves it to the budget.
    links_kept: ?u32 = null,
    /// The limit for codes, links and page directory together; 0 is none.
    memory_bytes: u64 = 0,
    /// Whether links are kept in memory, or stay on disk (the links-on-disk plan).
    links: enum { in_memory, where_room, on_disk } = .in_memory,
    /// Without codes nothing can be searched, but pages can be walked.
    codes: bool = true,
    /// Whether a few codes of each page take the place of codes and links.
    page_codes: enum { never, where_short, always } = .never,
    /// The number of codes of each page; null leaves it to the budget.
    page_codes_kept: ?u32 = null,
    threads: u32 = 1,
};

pub const Reader = struct {
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    parsed: layout.manifest.Parsed,
    metric: Metric,
    dtype: Dtype,
    header: layout.headers.Codes,
    pages_header: layout.headers.Pages,
    /// Open as long as the index, whose files may get another folder meanwhile.
    pages_file: std.fs.File,
    /// Of the lists in pages.
    /// Apart, since its tables are 58 KB and a reader is returned by value.
    adjacency: *const layout.page_lists.Codec,
    rotation: quant.Rotation,
    mean: []f32,
    codes_memory: base.AlignedBytes,
    codes: quant.Codes,
    directory: layout.page_starts.Directory,
    /// Null on the links-on-disk plan.
    links: ?layout.links.Links = null,
    links_memory: base.AlignedBytes = .empty,
    links_kept: u32 = 0,
    /// Shared links, where there is no room for those of vertices.
    block_adjacency: ?block_adjacency.BlockAdjacency = null,
    /// In the place of codes and links; of an index of format 6.
    page_codes: ?page_codes.PageCodes = null,
    /// The same of an index whose pages have tables.
    page_products: ?page_codes.PageProducts = null,
    vectors: ?Vectors = null,
    /// Of an open index that searches read through descriptors of their own: then the reader has closed its files.
    closed: ?struct {
        pages: std.posix.fd_t,
        vectors: ?std.posix.fd_t,
        links_header: layout.headers.Links,
        levels: ?page_codes.Levels,
    } = null,

    pub fn manifest(self: *const Reader) *const layout.manifest.Manifest {
        return &self.parsed.value;
    }

    pub fn n(self: *const Reader) u32 {
        return @intCast(self.header.n);
    }

    pub fn open(allocator: std.mem.Allocator, path: []const u8, options: Options, diagnostic: *Diagnostic) Error!Reader {
        var has_record_codes = false;
        return open_as(allocator, path, options, &has_record_codes, diagnostic) catch |err| {
            if (err != error.BudgetTooSmall or options.page_codes != .where_short) return err;
            var of_pages = options;
            if (has_record_codes) {
                // Of few rows codes of vectors take less than the quantizer.
                of_pages.page_codes = .never;
                var of_codes: Diagnostic = .{};
                return open_as(allocator, path, of_pages, &has_record_codes, &of_codes) catch |another| {
                    if (another != error.BudgetTooSmall or of_codes.needed_bytes < diagnostic.needed_bytes) diagnostic.* = of_codes;
                    return another;
                };
            }
            of_pages.page_codes = .always;
            var second: Diagnostic = .{};
            return open_as(allocator, path, of_pages, &has_record_codes, &second) catch |another| {
                if (another == error.Unsupported) return err; // it has none
                // Of few rows codes take less: then they are the least that an error names.
                if (another == error.BudgetTooSmall and diagnostic.needed_bytes < second.needed_bytes) {
                    of_pages.page_codes = .never;
                    return open_as(allocator, path, of_pages, &has_record_codes, diagnostic) catch |least| {
                        if (least != error.BudgetTooSmall or diagnostic.needed_bytes >= second.needed_bytes) diagnostic.* = second;
                        return another;
                    };
                }
                diagnostic.* = second;
                return another;
            };
        };
    }

    fn open_as(allocator: std.mem.Allocator, path: []const u8, options: Options, has_record_codes: *bool, diagnostic: *Diagnostic) Error!Reader {
        var dir = std.fs.cwd().openDir(path, .{}) catch |err| return files.open_folder_error(path, err, diagnostic);
        errdefer dir.close();
        var parsed = try files.read_manifest(allocator, dir, path, diagnostic);
        errdefer parsed.deinit();
        const m = &parsed.value;
        const metric = std.meta.stringToEnum(Metric, m.metric) orelse return files.bad_manifest(diagnostic, "metric");
        const dtype = std.meta.stringToEnum(Dtype, m.dtype) orelse return files.bad_manifest(diagnostic, "dtype");
        // Files that other parts read (ids, columns) are checked here too: one rule for the whole folder.
        for (m.files) |file| {
            const ours = [_][]const u8{ files.file_codes, files.file_links, files.file_page_starts, files.file_pages, files.file_page_codes, files.file_vectors };
            for (ours) |name| {
                if (std.mem.eql(u8, name, file.name)) break;
            } else try files.check_file(allocator, dir, file, diagnostic);
        }
        try files.check_size(dir, m.file(files.file_pages) orelse return files.bad_manifest(diagnostic, files.file_pages), diagnostic);
        if (m.page_codes) try files.check_size(dir, m.file(files.file_page_codes) orelse return files.bad_manifest(diagnostic, files.file_page_codes), diagnostic);

        // ---- what says how codes are made ----
        const codes_file = m.file(files.file_codes) orelse return files.bad_manifest(diagnostic, files.file_codes);
        try files.check_size(dir, codes_file, diagnostic); // before room is made for what a manifest says
        if (codes_file.bytes < @sizeOf(layout.headers.Codes)) return files.bad_file(diagnostic, files.file_codes);
        var header: layout.headers.Codes = undefined;
        try read_head(dir, files.file_codes, std.mem.asBytes(&header), diagnostic);
        if (!std.mem.eql(u8, &header.magic, layout.headers.Codes.magic_expected)) return files.bad_file(diagnostic, files.file_codes);
        if (header.n == 0 or header.n > base.limits.vertices_max or header.n != m.n) return files.bad_file(diagnostic, files.file_codes);
        if (header.dim_in == 0 or header.dim_in > base.limits.dim_max or header.dim_in != m.dim or
            header.dim_code != quant.dim_code_of(header.dim_in) or
            header.memory_bits < 1 or header.memory_bits > 8 or header.record_bits > 8 or
            header.metric != @intFromEnum(metric) or header.entry_vertex >= header.n or
            header.center_count < 1 or header.center_count > base.limits.centers_max or
            header.file_bytes() != codes_file.bytes or !header.measures_valid()) return files.bad_file(diagnostic, files.file_codes);
        const mean = try allocator.alloc(f32, header.dim_in);
        errdefer allocator.free(mean);
        var rotation = try quant.Rotation.init(allocator, header.dim_in, header.rotation_seed);
        errdefer rotation.deinit(allocator);

        // ---- pages ----
        const pages_file = dir.openFile(files.file_pages, .{}) catch |err| return files.open_error(diagnostic, files.file_pages, err);
        errdefer pages_file.close();
        const pages_header = try read_pages_header(pages_file, m, &header, diagnostic);
        const adjacency = try allocator.create(layout.page_lists.Codec);
        errdefer allocator.destroy(adjacency);
        adjacency.* = layout.page_lists.Codec.load(&pages_header.codec) catch return files.bad_file(diagnostic, files.file_pages);
        const starts_file = m.file(files.file_page_starts) orelse return files.bad_manifest(diagnostic, files.file_page_starts);
        try files.check_size(dir, starts_file, diagnostic);
        const starts_bytes = try allocator.alloc(u8, std.math.cast(usize, starts_file.bytes) orelse return error.OutOfMemory);
        defer allocator.free(starts_bytes);
        try load(allocator, dir, starts_file, starts_bytes, diagnostic);
        var directory = layout.page_starts.Directory.decode(allocator, starts_bytes) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            error.BadStarts => return files.bad_file(diagnostic, files.file_page_starts),
        };
        errdefer directory.deinit(allocator);
        if (directory.n != header.n or directory.page_count() != pages_header.page_count) return files.bad_file(diagnostic, files.file_page_starts);

        // ---- codes ----
        // Codes of records read fewer pages than codes and links of vectors in the same memory: an index that has them was built so.
        has_record_codes.* = m.record_codes;
        const is_of_pages = options.codes and (options.page_codes == .always or (options.page_codes == .where_short and m.record_codes));
        const levels: ?page_codes.Levels = if (is_of_pages) try .read(dir, m, &header, diagnostic) else null;
        const level = if (levels) |*found| try page_codes.Chosen.of(found, m, &header, directory.memory_bytes(), options.memory_bytes, options.page_codes_kept, diagnostic) else null;
        // `open` goes on with codes of pages; those of vectors are not even loaded.
        if (level == null and m.page_codes and options.page_codes == .where_short and options.memory_bytes > 0 and
            codes_file.bytes + directory.memory_bytes() > options.memory_bytes)
        {
            diagnostic.needed_bytes = codes_file.bytes + directory.memory_bytes();
            return error.BudgetTooSmall;
        }
        const is_whole = options.codes and level == null;
        const codes_bytes = if (is_whole) codes_file.bytes else header.codes_offset();
        var codes_memory = try base.AlignedBytes.alloc(std.math.cast(usize, codes_bytes) orelse return error.OutOfMemory, .{ .huge_pages = true });
        errdefer codes_memory.free();
        if (is_whole) try load(allocator, dir, codes_file, codes_memory.bytes, diagnostic) else {
            if (options.codes) try files.check_file(allocator, dir, codes_file, diagnostic);
            try read_head(dir, codes_file.name, codes_memory.bytes, diagnostic);
        }
        const whole = codes_memory.bytes;
        @memcpy(mean, std.mem.bytesAsSlice(f32, whole[@sizeOf(layout.headers.Codes)..][0 .. header.dim_in * 4]));
        const codes = codes_in(&header, metric, whole, is_whole);
        if (!files.codes_valid(&codes) or !files.all_finite(mean) or !files.all_finite(codes.centers)) return files.bad_file(diagnostic, files.file_codes);
        var of_pages: ?page_codes.Loaded = if (level) |*chosen| try chosen.levels.load(allocator, dir, chosen.file, chosen.number, header.dim_in, &codes, diagnostic) else null;
        errdefer if (of_pages) |*found| found.deinit(allocator);
        if (of_pages) |*found| if (!found.holds_records_of(&directory)) return files.bad_file(diagnostic, files.file_page_codes);

        var self: Reader = .{
            .allocator = allocator,
            .dir = dir,
            .parsed = parsed,
            .metric = metric,
            .dtype = dtype,
            .header = header,
            .pages_header = pages_header,
            .pages_file = pages_file,
            .adjacency = adjacency,
            .rotation = rotation,
            .mean = mean,
            .codes_memory = codes_memory,
            .codes = codes,
            .directory = directory,
        };
        if (of_pages) |found| switch (found) {
            .uppers => |uppers_of_pages| self.page_codes = uppers_of_pages,
            .products => |products_of_pages| self.page_products = products_of_pages,
        };
        const resident = self.memory_codes_bytes() + self.memory_pages_bytes();
        if (options.memory_bytes > 0 and resident > options.memory_bytes)
            return self.codes_too_large(options.memory_bytes, options.links == .in_memory or !m.page_links, diagnostic);
        if (options.links == .on_disk and options.codes and !m.page_links) {
            diagnostic.argument = "plan";
            diagnostic.say("this index was built without links in its pages: links cannot stay on disk", .{});
            return error.Unsupported;
        }
        if (options.links != .on_disk and level == null) self.load_links(options, resident, diagnostic) catch |err| {
            // Too little memory for links is not too little for an index whose links may stay on disk.
            const none = err == error.Unsupported or err == error.BudgetTooSmall;
            if (!none or options.links == .in_memory or !m.page_links) return err;
        };
        errdefer self.free_links();
        if (m.file(files.file_vectors)) |file| {
            try files.check_size(dir, file, diagnostic);
            self.vectors = try Vectors.open(dir, m, header.dim_in * dtype.bytes(), pages_header.salt, diagnostic);
        }
        return self;
    }

    /// The codes of a file. If only its head is given, it has centers alone.
    fn codes_in(header: *const layout.headers.Codes, metric: Metric, bytes: []align(8) const u8, is_whole: bool) quant.Codes {
        return .{
            .params = .{ .dim = header.dim_code, .memory_bits = @intCast(header.memory_bits), .record_bits = @intCast(header.record_bits) },
            .n = @intCast(header.n),
            .bytes = if (is_whole) @alignCast(bytes[@intCast(header.codes_offset())..]) else &.{},
            .factors = if (is_whole) @alignCast(std.mem.bytesAsSlice(u32, bytes[@intCast(header.factors_offset())..][0..@intCast(header.n * 4)])) else &.{},
            .center_ids = if (is_whole) bytes[@intCast(header.center_ids_offset())..][0..@intCast(header.n)] else &.{},
            .centers = @alignCast(std.mem.bytesAsSlice(f32, bytes[@intCast(header.centers_offset())..][0..@intCast(header.centers_bytes())])),
            .form = space.form(metric),
            .norm2_per_f2 = header.norm2_per_f2,
            .tan_upper = header.tan_upper,
            .tan_full = header.tan_full,
        };
    }

    /// Closes the folder and the files in it. The few calls that read pages or vectors use these descriptors of the same
    /// files, which stay open as long as the reader. Where links.bin or page_codes.bin cannot be read, which those calls
    /// report, everything stays open.
    pub fn close_files(self: *Reader, pages: std.posix.fd_t, vectors: ?std.posix.fd_t) void {
        var unused: Diagnostic = .{};
        const links_header = self.read_links_header(&unused) catch return;
        const levels = if (self.manifest().page_codes) self.read_levels(&unused) catch return else null;
        if (self.vectors) |*own| own.close();
        self.pages_file.close();
        self.dir.close();
        self.closed = .{ .pages = pages, .vectors = vectors, .links_header = links_header, .levels = levels };
    }

    pub fn deinit(self: *Reader) void {
        if (self.closed == null) {
            if (self.vectors) |*vectors| vectors.close();
            self.pages_file.close();
            self.dir.close();
        }
        self.free_links();
        self.allocator.destroy(self.adjacency);
        self.directory.deinit(self.allocator);
        self.rotation.deinit(self.allocator);
        self.allocator.free(self.mean);
        if (self.page_codes) |*found| found.deinit();
        if (self.page_products) |*found| found.deinit(self.allocator);
        self.codes_memory.free();
        self.parsed.deinit();
    }

    fn free_links(self: *Reader) void {
        self.links_memory.free();
        self.links = null;
        if (self.block_adjacency) |*block_links| block_links.deinit();
        self.block_adjacency = null;
    }

    const MappedLinks = struct { file: files.Mapped, header: layout.headers.Links, links: layout.links.Links };

    /// The links in their file, which has the right sum and whose lists lie inside it.
    pub fn map_links(self: *const Reader, diagnostic: *Diagnostic) Error!MappedLinks {
        const m = self.manifest();
        const file = m.file(files.file_links) orelse return files.bad_manifest(diagnostic, files.file_links);
        var mapped = try files.map_checked(self.allocator, self.dir, file, diagnostic);
        errdefer mapped.free();
        const memory = mapped.bytes;
        if (file.bytes < @sizeOf(layout.headers.Links)) return files.bad_file(diagnostic, files.file_links);
        const header = std.mem.bytesToValue(layout.headers.Links, memory[0..@sizeOf(layout.headers.Links)]);
        if (!std.mem.eql(u8, &header.magic, layout.headers.Links.magic_expected) or header.n != self.header.n or
            header.links_built != m.links_built or header.links_built > layout.adjacency.neighbors_max or
            header.heap_bytes > file.bytes or header.file_bytes() != file.bytes) return files.bad_file(diagnostic, files.file_links);
        const groups = layout.links.group_count(self.n());
        var at: usize = @sizeOf(layout.headers.Links);
        const group_bytes = (@as(usize, groups) + 1) * 8;
        const links: layout.links.Links = .{
            .n = self.n(),
            .codec = layout.adjacency.Codec.load(&header.codec) catch return files.bad_file(diagnostic, files.file_links),
            .groups = @alignCast(std.mem.bytesAsSlice(u64, memory[at..][0..group_bytes])),
            .lengths = blk: {
                at += group_bytes;
                break :blk memory[at..][0 .. @as(usize, groups) * layout.links.group_size];
            },
            .heap = memory[at + @as(usize, groups) * layout.links.group_size ..][0..@intCast(header.heap_bytes)],
        };
        links.verify() catch return files.bad_file(diagnostic, files.file_links);
        return .{ .file = mapped, .header = header, .links = links };
    }

    /// Reads codes and links of vectors once, without keeping them.
    pub fn check_codes_and_links(self: *const Reader, diagnostic: *Diagnostic) Error!void {
        const file = self.manifest().file(files.file_codes) orelse return files.bad_manifest(diagnostic, files.file_codes);
        var mapped_codes = try files.map_checked(self.allocator, self.dir, file, diagnostic);
        defer mapped_codes.free();
        if (!files.codes_valid(&codes_in(&self.header, self.metric, mapped_codes.bytes, true))) return files.bad_file(diagnostic, files.file_codes);
        files.forget(mapped_codes.bytes);
        var mapped = try self.map_links(diagnostic);
        defer mapped.file.free();
        if (mapped.header.links_built == 0) return;
        var ids: [layout.adjacency.neighbors_max]u32 = undefined;
        for (0..self.n()) |vertex| {
            _ = mapped.links.decode(@intCast(vertex), &ids) catch {
                diagnostic.in_file(files.file_links, "the links of vertex {d} are damaged", .{vertex});
                return error.Corrupt;
            };
            if (vertex % 65_536 == 65_535) files.forget(mapped.file.bytes);
        }
    }

    fn load_links(self: *Reader, options: Options, resident: u64, diagnostic: *Diagnostic) Error!void {
        // If fewer links are kept than were built, the file is only passed through: it is never in memory whole.
        var mapped = try self.map_links(diagnostic);
        defer mapped.file.free();
        const memory = mapped.file.bytes;
        const links = mapped.links;
        const header = mapped.header;
        const built = header.links_built;
        if (built == 0) {
            // Navigation would stay where it begins.
            diagnostic.argument = "plan";
            diagnostic.say("this index was built without links for memory (links_kept=0): they can only stay on disk", .{});
            return error.Unsupported;
        }
        const room: ?u64 = if (options.memory_bytes == 0) null else options.memory_bytes - resident;
        const wanted = options.links_kept orelse if (room == null) built else @min(built, lists_in_memory.kept_enough);
        const tiers = memory[@intCast(header.resident_bytes())..];
        if (built >= block_adjacency.built_min) if (block_adjacency.shape_of(wanted)) |shape| {
            if (try self.load_block_links(&links, tiers, built, shape, room, options.threads, diagnostic)) return;
            return links_too_large(self.bytes_with_links(), options.memory_bytes, diagnostic);
        };
        if (wanted > built or (wanted < built and wanted < lists_in_memory.kept_min)) {
            diagnostic.argument = "links_kept";
            diagnostic.say("links_kept is {d}; of this index it must lie within {d} and {d}", .{ wanted, @min(built, lists_in_memory.kept_min), built });
            return error.InvalidArgument;
        }
        const resident_bytes: usize = @intCast(header.resident_bytes());
        if (wanted == built and (room == null or resident_bytes <= room.?)) {
            self.links_memory = try .alloc(resident_bytes, .{ .huge_pages = true });
            self.links = self.copied(&links, memory[0..resident_bytes]);
            self.links_kept = built;
            return;
        }
        var needed: u64 = 0;
        const trimmed = lists_in_memory.trim(self.allocator, &links, memory[resident_bytes..], wanted, built, room, options.threads, files.forget, &needed) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            error.BadList => return files.bad_file(diagnostic, files.file_links),
            error.NoRoom => {
                if (built < block_adjacency.built_min) return links_too_large(resident + needed, options.memory_bytes, diagnostic);
                for (block_adjacency.shapes) |shape| {
                    if (try self.load_block_links(&links, tiers, built, shape, room, options.threads, diagnostic)) return;
                }
                return links_too_large(self.bytes_with_links(), options.memory_bytes, diagnostic);
            },
        };
        self.links = trimmed.links;
        self.links_memory = trimmed.memory;
        self.links_kept = trimmed.kept;
    }

    /// Shared links, which take a fraction of what those of vertices take; false where there is no room for them.
    fn load_block_links(self: *Reader, links: *const layout.links.Links, tiers: []const u8, built: u32, shape: block_adjacency.Shape, room: ?u64, threads: u32, diagnostic: *Diagnostic) Error!bool {
        // Making them takes time, so what would not be kept is not made.
        if (room) |bytes| if (block_adjacency.estimate_bytes(shape, self.n()) > bytes) return false;
        var block_links = block_adjacency.make(self.allocator, .{ .links = links, .tiers = tiers, .most = built, .release = files.forget }, &self.directory, shape, threads) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            error.BadList => return files.bad_file(diagnostic, files.file_links),
        };
        if (room) |bytes| if (block_links.memory_bytes() > bytes) {
            block_links.deinit();
            return false;
        };
        self.block_adjacency = block_links;
        self.links_kept = shape.kept();
        return true;
    }

    /// Codes of each page in memory.
    pub fn page_codes_kept(self: *const Reader) u32 {
        return if (self.page_codes) |*found| found.count else if (self.page_products) |*found| found.count else 0;
    }

    /// Whether pages end with a table of neighbors.
    pub fn has_tables(self: *const Reader) bool {
        return self.manifest().page_tables;
    }

    /// Whether navigation goes through memory.
    pub fn has_links(self: *const Reader) bool {
        return self.links != null or self.block_adjacency != null;
    }

    /// The least that opens is what codes and page directory take, and where links must be in memory the fewest of these.
    fn codes_too_large(self: *const Reader, memory_bytes: u64, with_links: bool, diagnostic: *Diagnostic) Error {
        const resident = self.memory_codes_bytes() + self.memory_pages_bytes();
        diagnostic.argument = "memory";
        diagnostic.needed_bytes = if (with_links) @max(resident, self.bytes_with_links()) else resident;
        if (diagnostic.needed_bytes > resident) {
            diagnostic.say("memory is {d} bytes, but the codes, the page directory and the fewest links take {d}", .{ memory_bytes, diagnostic.needed_bytes });
        } else diagnostic.say("memory is {d} bytes, but the codes and the page directory alone take {d}", .{ memory_bytes, resident });
        return error.BudgetTooSmall;
    }

    /// Without lists in pages too little memory for links is too little for the index.
    fn links_needed(self: *const Reader, diagnostic: *Diagnostic) Error {
        diagnostic.needed_bytes = self.bytes_with_links();
        diagnostic.argument = "memory";
        diagnostic.say("this index was built without links in its pages, so links must be in memory, which takes {d} bytes in all", .{diagnostic.needed_bytes});
        return error.BudgetTooSmall;
    }

    /// The links that a budget would keep beside codes and page directory, by estimate; null is none.
    pub fn links_within(self: *const Reader, memory_bytes: u64, diagnostic: *Diagnostic) Error!?lists_in_memory.Choice {
        const resident = self.memory_codes_bytes() + self.memory_pages_bytes();
        if (memory_bytes > 0 and resident > memory_bytes)
            return self.codes_too_large(memory_bytes, !self.manifest().page_links, diagnostic);
        const header = if (self.closed) |*closed| closed.links_header else try self.read_links_header(diagnostic);
        const room: ?u64 = if (memory_bytes == 0) null else memory_bytes - resident;
        const choice = lists_in_memory.choose(&header, room) orelse self.ways_within(header.links_built, room);
        if (choice == null and !self.manifest().page_links) return self.links_needed(diagnostic);
        return choice;
    }

    fn read_links_header(self: *const Reader, diagnostic: *Diagnostic) Error!layout.headers.Links {
        var header: layout.headers.Links = undefined;
        try read_head(self.dir, files.file_links, std.mem.asBytes(&header), diagnostic);
        if (header.n != self.header.n or header.links_built != self.manifest().links_built or
            header.links_built > layout.adjacency.neighbors_max) return files.bad_file(diagnostic, files.file_links);
        return header;
    }

    pub const PageCodesKept = struct { kept: u32, bytes: u64 };

    /// The number of codes of each page that a budget would keep in the place of codes and links; null where there are none.
    pub fn page_codes_within(self: *const Reader, memory_bytes: u64, diagnostic: *Diagnostic) Error!?PageCodesKept {
        if (!self.manifest().page_codes) return null;
        const levels = if (self.closed) |*closed| closed.levels.? else try self.read_levels(diagnostic);
        const chosen: page_codes.Chosen = try .of(&levels, self.manifest(), &self.header, self.memory_pages_bytes(), memory_bytes, null, diagnostic);
        return .{ .kept = chosen.levels.count_of(chosen.number), .bytes = chosen.bytes };
    }

    fn read_levels(self: *const Reader, diagnostic: *Diagnostic) Error!page_codes.Levels {
        return .read(self.dir, self.manifest(), &self.header, diagnostic);
    }

    /// Shared links, where a budget has room for no others.
    fn ways_within(self: *const Reader, built: u32, room: ?u64) ?lists_in_memory.Choice {
        if (built < block_adjacency.built_min) return null;
        for (block_adjacency.shapes) |shape| {
            const bytes = block_adjacency.estimate_bytes(shape, self.n());
            if (bytes <= room orelse std.math.maxInt(u64)) return .{ .kept = shape.kept(), .bytes = bytes };
        }
        return null;
    }

    /// `links` over `memory`, copied into `links_memory`; the mapping leaves the resident set as it is copied.
    fn copied(self: *Reader, links: *const layout.links.Links, memory: []const u8) layout.links.Links {
        const target = self.links_memory.bytes;
        var at: usize = 0;
        while (at < memory.len) : (at += copy_bytes) {
            const part = memory[at..@min(memory.len, at + copy_bytes)];
            @memcpy(target[at..][0..part.len], part);
            files.forget(part);
        }
        const groups = @intFromPtr(links.groups.ptr) - @intFromPtr(memory.ptr);
        const lengths = @intFromPtr(links.lengths.ptr) - @intFromPtr(memory.ptr);
        const heap = @intFromPtr(links.heap.ptr) - @intFromPtr(memory.ptr);
        return .{
            .n = links.n,
            .codec = links.codec,
            .groups = @alignCast(std.mem.bytesAsSlice(u64, target[groups..][0 .. links.groups.len * 8])),
            .lengths = target[lengths..][0..links.lengths.len],
            .heap = target[heap..][0..links.heap.len],
        };
    }

    /// Data of codes.bin for these records of a page, from memory or from the page.
    pub fn uppers(self: *const Reader, view: *const layout.page.View) quant.Uppers {
        const own = view.uppers orelse return self.codes.uppers(view.first_vertex, view.record_count);
        return .{ .codes = own.codes, .factors = own.factors.ptr, .center_ids = own.center_ids.ptr };
    }

    pub fn memory_codes_bytes(self: *const Reader) u64 {
        const of_pages = if (self.page_codes) |*found| found.memory.bytes.len else if (self.page_products) |*found| found.memory_bytes() else 0;
        return self.codes_memory.bytes.len + of_pages;
    }
    /// Bytes of the fewest links in memory, codes and page directory included, a little more than less; 0 where
    /// the index was built without links for memory.
    pub fn bytes_with_links(self: *const Reader) u64 {
        const m = self.manifest();
        const file = m.file(files.file_links) orelse return 0;
        if (m.links_built == 0) return 0;
        const vertices: u64 = self.n();
        if (m.links_built >= block_adjacency.built_min)
            return self.memory_codes_bytes() + self.memory_pages_bytes() + block_adjacency.estimate_bytes(block_adjacency.shapes[block_adjacency.shapes.len - 1], self.n());
        const overhead = (layout.links.group_count(self.n()) + 1) * 8 + vertices;
        const rest = overhead + vertices * layout.links.tier_bytes(m.links_built);
        const kept = @min(lists_in_memory.kept_min, m.links_built);
        const links_bytes = lists_in_memory.estimate_of(overhead, file.bytes -| rest, m.links_built, kept);
        // The named size must suffice: lists end on whole bytes, and the first links are farther apart than the rest.
        return self.memory_codes_bytes() + self.memory_pages_bytes() + links_bytes + links_bytes / 4 + vertices;
    }

    pub fn memory_links_bytes(self: *const Reader) u64 {
        return self.links_memory.bytes.len + if (self.block_adjacency) |*block_links| block_links.memory_bytes() else 0;
    }
    pub fn memory_pages_bytes(self: *const Reader) u64 {
        return self.directory.memory_bytes();
    }

    /// The header fields of a page.
    pub fn expected_page(self: *const Reader, page: u32) layout.page.View.Expected {
        return .{ .page_index = page, .first_vertex = self.directory.first_vertex(page), .record_count = self.directory.record_count(page) };
    }

    pub fn page_geometry(self: *const Reader) layout.page.Geometry {
        const m = self.manifest();
        return .{
            .page_size = self.pages_header.page_size,
            .lower_bytes = self.pages_header.lower_bytes,
            .salt = self.pages_header.salt,
            .lists = m.page_links,
            .upper_bytes = if (m.page_codes) @intCast(self.codes.params.upper_bytes()) else 0,
            .code_bytes = m.code_bytes,
        };
    }

    /// Stored vectors of these vertices as float32 (count × dim), in the space of the input.
    pub fn get_vectors(self: *const Reader, vertices: []const u32, out: []f32, diagnostic: *Diagnostic) Error!void {
        const vectors = self.vectors orelse {
            diagnostic.say("this index stores no vectors; build it with store_vectors=True", .{});
            return error.Unsupported;
        };
        try self.check_vertices(vertices, diagnostic);
        const closed = self.closed orelse return vectors.read(self.allocator, self.dtype, vertices, out, diagnostic);
        const file: files.Reopened = .of(closed.vectors.?);
        defer file.close();
        const again: Vectors = .{ .file = file.file, .geometry = vectors.geometry };
        try again.read(self.allocator, self.dtype, vertices, out, diagnostic);
    }

    fn check_vertices(self: *const Reader, vertices: []const u32, diagnostic: *Diagnostic) Error!void {
        for (vertices) |vertex| {
            if (vertex < self.n()) continue;
            diagnostic.argument = "vertices";
            diagnostic.say("vertex {d} is not below {d}", .{ vertex, self.n() });
            return error.InvalidArgument;
        }
    }

    /// Vectors of these vertices from their whole codes, where none are stored (docs/rabitq.md, "What a code keeps"), as float32 (count × dim), in the space of the input; of
    /// cosine their directions. Vertices that ascend are read page after page.
    pub fn decode_vectors(self: *const Reader, vertices: []const u32, out: []f32, diagnostic: *Diagnostic) Error!void {
        try self.check_vertices(vertices, diagnostic);
        const codes = &self.codes;
        const params = codes.params;
        const upper_bytes = params.upper_bytes();
        const lower_bytes = params.lower_bytes();
        const code = try self.allocator.alloc(u16, params.dim);
        defer self.allocator.free(code);
        const rotated = try self.allocator.alloc(f32, params.dim);
        defer self.allocator.free(rotated);
        var walk = try PageWalk.init(self.allocator, self);
        defer walk.deinit();
        var at_hand: ?layout.page.View = null;
        for (vertices, 0..) |vertex, i| {
            const view = if (at_hand != null and at_hand.?.has(vertex)) at_hand.? else page: {
                walk.seek(self.directory.page_of(vertex));
                break :page (try walk.next(diagnostic)).?;
            };
            at_hand = view;
            const record = vertex - view.first_vertex;
            const own = self.uppers(&view);
            const center_id = own.center_ids[record];
            if (center_id >= self.header.center_count) return files.bad_file(diagnostic, files.file_pages);
            const center = codes.centers[@as(usize, center_id) * params.dim ..][0..params.dim];
            const f_upper = quant.PositiveFloat.decode(@intCast(own.factors[record] >> 16));
            const f_full = quant.RecordFactors.f_full(view.ratios[record], f_upper, params.record_bits);
            quant.decode(params, own.codes[record * upper_bytes ..][0..upper_bytes], view.lower[record * lower_bytes ..][0..lower_bytes], f_full, center, code, rotated);
            const row = out[i * self.header.dim_in ..][0..self.header.dim_in];
            self.rotation.undo(rotated, row);
            for (row, self.mean) |*value, mean| value.* += mean;
            space.nearest_given(self.metric, self.dtype, row);
        }
    }
};

fn links_too_large(needed_bytes: u64, memory_bytes: u64, diagnostic: *Diagnostic) Error {
    diagnostic.needed_bytes = needed_bytes;
    diagnostic.argument = "memory";
    diagnostic.say("memory is {d} bytes; links in memory need at least {d}", .{ memory_bytes, needed_bytes });
    return error.BudgetTooSmall;
}

fn read_pages_header(file: std.fs.File, m: *const layout.manifest.Manifest, codes: *const layout.headers.Codes, diagnostic: *Diagnostic) Error!layout.headers.Pages {
    var bytes: [@sizeOf(layout.headers.Pages)]u8 = undefined;
    const len = file.preadAll(&bytes, 0) catch |err| return diagnostics.file_error(diagnostic, files.file_pages, "read", err);
    if (len != bytes.len) return files.bad_file(diagnostic, files.file_pages);
    const header = std.mem.bytesToValue(layout.headers.Pages, &bytes);
    if (!std.mem.eql(u8, &header.magic, layout.headers.Pages.magic_expected)) return files.bad_file(diagnostic, files.file_pages);
    if (header.checksum != base.checksum(bytes[16..])) return files.bad_file(diagnostic, files.file_pages);
    if (header.page_size < base.limits.page_size_min or header.page_size > base.limits.page_size_max or
        !std.math.isPowerOfTwo(header.page_size) or header.page_count != m.page_count or
        header.lower_bytes != codes.dim_code * codes.record_bits / 8) return files.bad_file(diagnostic, files.file_pages);
    if ((@as(u64, header.page_count) + 1) * header.page_size != m.file(files.file_pages).?.bytes) return files.bad_file(diagnostic, files.file_pages);
    return header;
}

fn load(allocator: std.mem.Allocator, dir: std.fs.Dir, file: layout.manifest.File, buffer: []u8, diagnostic: *Diagnostic) Error!void {
    const sum = std.fmt.parseInt(u64, file.checksum, 16) catch return files.bad_manifest(diagnostic, file.name);
    return files.read_checked(allocator, dir, file.name, buffer, sum, diagnostic);
}

/// The first bytes of a file, as many as there is room for: their checksum is that of the whole file and is not looked at.
fn read_head(dir: std.fs.Dir, name: []const u8, buffer: []u8, diagnostic: *Diagnostic) Error!void {
    const file = dir.openFile(name, .{}) catch |err| return files.open_error(diagnostic, name, err);
    defer file.close();
    const len = file.preadAll(buffer, 0) catch |err| return diagnostics.file_error(diagnostic, name, "read", err);
    if (len != buffer.len) return files.bad_file(diagnostic, name);
}

// ---- page by page ----
//
// Every page of pages.bin, one after another, checked.

pub const PageWalk = struct {
    allocator: std.mem.Allocator,
    opened: *const Reader,
    /// Null while the reader has its own open.
    reopened: ?files.Reopened,
    /// Aligned for a file that bypasses the page cache.
    buffer: []align(base.memory.page_size) u8,
    /// The number of pages that came before.
    count: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, opened: *const Reader) error{OutOfMemory}!PageWalk {
        const buffer = try allocator.alignedAlloc(u8, .fromByteUnits(base.memory.page_size), opened.page_geometry().page_size + layout.adjacency.over_read_bytes);
        return .{ .allocator = allocator, .opened = opened, .reopened = if (opened.closed) |*closed| .of(closed.pages) else null, .buffer = buffer };
    }

    pub fn deinit(self: *PageWalk) void {
        if (self.reopened) |file| file.close();
        self.allocator.free(self.buffer);
    }

    /// The next page, valid until the next call; null after the last.
    pub fn next(self: *PageWalk, diagnostic: *Diagnostic) Error!?layout.page.View {
        const directory = &self.opened.directory;
        if (self.count == directory.page_count()) return null;
        const number = self.count;
        const geometry = self.opened.page_geometry();
        const page = self.buffer[0..geometry.page_size];
        const file = if (self.reopened) |reopened| reopened.file else self.opened.pages_file;
        const len = file.preadAll(page, self.opened.pages_header.offset_of(number)) catch |err| return diagnostics.file_error(diagnostic, files.file_pages, "read", err);
        if (len != page.len) return bad_page(diagnostic, number, "it is cut short");
        const view = layout.page.View.parse(page, geometry, .{
            .page_index = number,
            .first_vertex = directory.first_vertex(number),
            .record_count = directory.record_count(number),
        }) catch |err| return bad_page(diagnostic, number, layout.page.describe(err));
        self.count += 1;
        return view;
    }

    /// Goes on with a page that may lie anywhere.
    pub fn seek(self: *PageWalk, page: u32) void {
        self.count = page;
    }

    /// The next page is not read.
    pub fn skip(self: *PageWalk) void {
        self.count += 1;
    }

    /// The neighbors of a record of the page that came last, in `ids`.
    pub fn list(self: *const PageWalk, view: *const layout.page.View, record: u32, ids: *[layout.adjacency.neighbors_max]u32, diagnostic: *Diagnostic) Error![]u32 {
        const number = self.count - 1;
        const encoded = view.list(record) catch |err| return bad_page(diagnostic, number, layout.page.describe(err));
        return self.opened.adjacency.decode(view.first_vertex + record, encoded.bytes, encoded.length, self.opened.n(), ids) catch
            return bad_page(diagnostic, number, "a neighbor list is damaged");
    }

    /// The table of the page that came last, with its ids in `ids`.
    pub fn table(self: *const PageWalk, view: *const layout.page.View, ids: *[layout.page.table_max]u32, diagnostic: *Diagnostic) Error!layout.page.View.Table {
        return view.table(self.opened.adjacency, self.opened.n(), ids) catch |err| bad_page(diagnostic, self.count - 1, layout.page.describe(err));
    }
};

fn bad_page(diagnostic: *Diagnostic, page_index: u32, why: []const u8) Error {
    diagnostic.in_file(files.file_pages, "page {d} of {s}: {s}", .{ page_index, files.file_pages, why });
    diagnostic.page = page_index;
    return error.Corrupt;
}
