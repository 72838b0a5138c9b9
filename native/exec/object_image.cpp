#include "exec/object_image.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

namespace grainline {
namespace {

struct External {
  std::string_view name;
  uint64_t address;
};

template <typename R, typename... A>
uint64_t address_of(R (*function)(A...)) {
  return reinterpret_cast<uint64_t>(function);
}

// What code generators of floating-point kernels call.
const External kExternals[] = {
    {"memcpy", address_of<void*, void*, const void*, size_t>(std::memcpy)},
    {"memmove", address_of<void*, void*, const void*, size_t>(std::memmove)},
    {"memset", address_of<void*, void*, int, size_t>(std::memset)},
    {"fmod", address_of<double, double, double>(::fmod)},
    {"fmodf", address_of<float, float, float>(::fmodf)},
    {"pow", address_of<double, double, double>(::pow)},
    {"powf", address_of<float, float, float>(::powf)},
    {"exp", address_of<double, double>(::exp)},
    {"expf", address_of<float, float>(::expf)},
    {"log", address_of<double, double>(::log)},
    {"logf", address_of<float, float>(::logf)},
    {"sin", address_of<double, double>(::sin)},
    {"sinf", address_of<float, float>(::sinf)},
    {"cos", address_of<double, double>(::cos)},
    {"cosf", address_of<float, float>(::cosf)},
};

// jmp *0(%rip), then the absolute target: reaches any address from anywhere.
constexpr uint8_t kStub[] = {0xFF, 0x25, 0, 0, 0, 0};
constexpr size_t kStubBytes = 16;

size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

}  // namespace

// One use: parse, place, relocate, protect. Every step returns a Status.
class ObjectLinker {
 public:
  explicit ObjectLinker(std::span<const std::byte> object) : object_(object) {}

  Status link(ObjectImage* image) {
    Status status = parse();
    if (status.is_ok()) status = place(image);
    if (status.is_ok()) status = resolve();
    if (status.is_ok()) status = relocate();
    if (status.is_ok()) status = protect(image);
    return status;
  }

 private:
  static Status refuse(const std::string& why) {
    return Status(StatusCode::invalid_argument, "the object cannot be loaded: " + why);
  }

  bool has(uint64_t offset, uint64_t size) const {
    return offset <= object_.size() && size <= object_.size() - offset;
  }

  template <typename T>
  bool read(uint64_t offset, T* value) const {
    if (!has(offset, sizeof(T))) return false;
    std::memcpy(value, object_.data() + offset, sizeof(T));
    return true;
  }

  std::string text(uint64_t table, uint64_t offset) const {
    const Elf64_Shdr& strings = sections_[table];
    std::string result;
    for (uint64_t i = offset; i < strings.sh_size; ++i) {
      const char c = static_cast<char>(object_[strings.sh_offset + i]);
      if (c == '\0') break;
      result += c;
    }
    return result;
  }

  Status parse() {
    Elf64_Ehdr header;
    if (!read(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64 ||
        header.e_type != ET_REL || header.e_shentsize != sizeof(Elf64_Shdr))
      return refuse("it is no x86-64 relocatable ELF file");
    sections_.resize(header.e_shnum);
    for (size_t i = 0; i < sections_.size(); ++i) {
      if (!read(header.e_shoff + i * sizeof(Elf64_Shdr), &sections_[i]))
        return refuse("its section table is cut off");
      const Elf64_Shdr& section = sections_[i];
      if (section.sh_type != SHT_NOBITS && !has(section.sh_offset, section.sh_size))
        return refuse("a section is cut off");
      if (section.sh_type == SHT_SYMTAB) symbol_section_ = i;
    }
    if (symbol_section_ == 0) return refuse("it has no symbols");
    return read_symbols();
  }

  Status read_symbols() {
    const Elf64_Shdr& table = sections_[symbol_section_];
    if (table.sh_link >= sections_.size() || sections_[table.sh_link].sh_type != SHT_STRTAB)
      return refuse("its symbols have no names");
    symbols_.resize(table.sh_size / sizeof(Elf64_Sym));
    if (!symbols_.empty())
      std::memcpy(symbols_.data(), object_.data() + table.sh_offset,
                  symbols_.size() * sizeof(Elf64_Sym));
    return {};
  }

  bool is_code(const Elf64_Shdr& section) const { return section.sh_flags & SHF_EXECINSTR; }

  // Unwind tables are for tools that we do not serve.
  bool is_loaded(size_t index) const {
    const Elf64_Shdr& section = sections_[index];
    if (!(section.sh_flags & SHF_ALLOC) || section.sh_size == 0) return false;
    return section.sh_type == SHT_PROGBITS || section.sh_type == SHT_NOBITS;
  }

  // Code and stubs first, then everything else on pages of its own.
  Status place(ObjectImage* image) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    offsets_.assign(sections_.size(), 0);
    size_t at = 0;
    for (const bool code : {true, false}) {
      for (size_t i = 0; i < sections_.size(); ++i) {
        const Elf64_Shdr& section = sections_[i];
        if (!is_loaded(i) || is_code(section) != code) continue;
        if ((section.sh_flags & SHF_WRITE) != 0) return refuse("it has writable data");
        if (section.sh_addralign > page || section.sh_size > (1u << 30))
          return refuse("a section is too large");
        at = round_up(at, section.sh_addralign > 0 ? section.sh_addralign : 1);
        offsets_[i] = at;
        at += section.sh_size;
      }
      if (code) {
        stubs_ = round_up(at, kStubBytes);
        at = code_bytes_ = round_up(stubs_ + kStubBytes * std::size(kExternals), page);
      }
    }
    const size_t size = round_up(at, page);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Status(StatusCode::out_of_memory, "no memory for code");
    image->memory_ = memory_ = static_cast<std::byte*>(memory);
    image->size_bytes_ = size;
    for (size_t i = 0; i < sections_.size(); ++i)
      if (is_loaded(i) && sections_[i].sh_type == SHT_PROGBITS)
        std::memcpy(memory_ + offsets_[i], object_.data() + sections_[i].sh_offset,
                    sections_[i].sh_size);
    image_ = image;
    return {};
  }

  Status resolve() {
    addresses_.assign(symbols_.size(), 0);
    for (size_t i = 1; i < symbols_.size(); ++i) {
      const Elf64_Sym& symbol = symbols_[i];
      if (symbol.st_shndx == SHN_UNDEF) {
        addresses_[i] = stub_of(name_of(symbol));
      } else if (symbol.st_shndx < sections_.size() && is_loaded(symbol.st_shndx)) {
        const std::byte* base = memory_ + offsets_[symbol.st_shndx];
        addresses_[i] = reinterpret_cast<uint64_t>(base) + symbol.st_value;
        if (ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL)
          image_->symbols_[name_of(symbol)] = addresses_[i];
      }
    }
    return {};
  }

  std::string name_of(const Elf64_Sym& symbol) const {
    return text(sections_[symbol_section_].sh_link, symbol.st_name);
  }

  uint64_t stub_of(const std::string& name) {
    for (size_t i = 0; i < std::size(kExternals); ++i) {
      if (kExternals[i].name != name) continue;
      std::byte* stub = memory_ + stubs_ + i * kStubBytes;
      std::memcpy(stub, kStub, sizeof kStub);
      std::memcpy(stub + sizeof kStub, &kExternals[i].address, sizeof(uint64_t));
      return reinterpret_cast<uint64_t>(stub);
    }
    return 0;
  }

  Status relocate() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA || section.sh_info >= sections_.size()) continue;
      if (!is_loaded(section.sh_info)) continue;
      for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Rela); ++i) {
        Elf64_Rela relocation;
        std::memcpy(&relocation, object_.data() + section.sh_offset + i * sizeof relocation,
                    sizeof relocation);
        Status status = apply(section.sh_info, relocation);
        if (!status.is_ok()) return status;
      }
    }
    return {};
  }

  Status apply(size_t section, const Elf64_Rela& relocation) {
    const uint64_t index = ELF64_R_SYM(relocation.r_info);
    const uint64_t type = ELF64_R_TYPE(relocation.r_info);
    const size_t width = type == R_X86_64_64 || type == R_X86_64_PC64 ? 8 : 4;
    const uint64_t size = sections_[section].sh_size;
    if (index >= symbols_.size() || size < width || relocation.r_offset > size - width)
      return refuse("a relocation points outside");
    if (addresses_[index] == 0)
      return refuse("it needs the unknown symbol '" + name_of(symbols_[index]) + "'");
    std::byte* place = memory_ + offsets_[section] + relocation.r_offset;
    const uint64_t target = addresses_[index] + static_cast<uint64_t>(relocation.r_addend);
    const auto distance = static_cast<int64_t>(target - reinterpret_cast<uint64_t>(place));
    switch (type) {
      case R_X86_64_64:
        std::memcpy(place, &target, sizeof target);
        return {};
      case R_X86_64_PC64:
        std::memcpy(place, &distance, sizeof distance);
        return {};
      case R_X86_64_PC32:
      case R_X86_64_PLT32: {
        const auto narrow = static_cast<int32_t>(distance);
        if (narrow != distance) return refuse("a relocation does not reach its target");
        std::memcpy(place, &narrow, sizeof narrow);
        return {};
      }
      default:
        return refuse("it has a relocation of type " + std::to_string(type));
    }
  }

  Status protect(ObjectImage* image) {
    const size_t rest = image->size_bytes_ - code_bytes_;
    if (mprotect(memory_, code_bytes_, PROT_READ | PROT_EXEC) != 0 ||
        (rest != 0 && mprotect(memory_ + code_bytes_, rest, PROT_READ) != 0))
      return Status(StatusCode::internal, "the system does not let us map code");
    return {};
  }

  std::span<const std::byte> object_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Sym> symbols_;
  std::vector<uint64_t> addresses_;  // by symbol; 0: unknown
  std::vector<size_t> offsets_;      // by section
  size_t symbol_section_ = 0;
  size_t stubs_ = 0;
  size_t code_bytes_ = 0;
  std::byte* memory_ = nullptr;
  ObjectImage* image_ = nullptr;
};

ObjectImage::~ObjectImage() {
  if (memory_ != nullptr) munmap(memory_, size_bytes_);
}

Status ObjectImage::load(std::span<const std::byte> object, std::unique_ptr<ObjectImage>* out) {
  std::unique_ptr<ObjectImage> image(new ObjectImage());
  Status status = ObjectLinker(object).link(image.get());
  if (status.is_ok()) *out = std::move(image);
  return status;
}

uint64_t ObjectImage::address(const std::string& symbol) const {
  const auto found = symbols_.find(symbol);
  return found == symbols_.end() ? 0 : found->second;
}

}  // namespace grainline
